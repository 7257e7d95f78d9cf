# libtrireme_cuda.so: every *_cuda.cpp of the modules, built where the CUDA toolkit's headers and nccl.h are.
# Nothing links it: it is loaded at run time where a GPU is. The CUDA libraries it needs may be absent here.
find_path(TRIREME_CUDA_INCLUDE cuda_runtime.h HINTS "$ENV{CUDA_HOME}/include" /usr/local/cuda/include)
find_path(TRIREME_NCCL_INCLUDE nccl.h HINTS "$ENV{CUDA_HOME}/include" /usr/local/cuda/include)
set(cuda_missing "")
if(NOT TRIREME_CUDA_INCLUDE)
  set(cuda_missing "cuda_runtime.h is nowhere (set CUDA_HOME to the CUDA toolkit)")
elseif(NOT TRIREME_NCCL_INCLUDE)
  set(cuda_missing "nccl.h is nowhere (package libnccl-dev)")
elseif(NOT EXISTS "${TRIREME_TORCH_DIR}/lib/libtorch_cuda.so")
  set(cuda_missing "this torch package has no libtorch_cuda.so")
endif()
if(cuda_missing)
  message(STATUS "CUDA object: not built: ${cuda_missing}")
  return()
endif()
message(STATUS "CUDA object: built with ${TRIREME_CUDA_INCLUDE}")

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/trireme/*_cuda.cpp")
add_library(trireme_cuda SHARED ${cuda_sources})
target_link_libraries(trireme_cuda PRIVATE trireme_torch trireme_flags)
target_include_directories(trireme_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(trireme_cuda SYSTEM PRIVATE "${TRIREME_CUDA_INCLUDE}" "${TRIREME_NCCL_INCLUDE}")
target_compile_definitions(trireme_cuda PRIVATE USE_C10D_NCCL)
target_link_libraries(trireme_cuda PRIVATE
  -Wl,--no-as-needed "${TRIREME_TORCH_DIR}/lib/libtorch_cuda.so" "${TRIREME_TORCH_DIR}/lib/libc10_cuda.so"
  -Wl,--as-needed -Wl,--allow-shlib-undefined)
# cudart may be absent where this is built; at run time torch has loaded it.
# Symbols of libraries that only some GPU machines have are looked up where they are first called, not at the load.
target_link_options(trireme_cuda PRIVATE -Wl,--unresolved-symbols=ignore-all LINKER:-z,lazy)
