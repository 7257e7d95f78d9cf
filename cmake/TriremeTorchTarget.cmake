# Target trireme_torch: libtorch for CPU use, from the folder TRIREME_TORCH_DIR of a torch package. The
# build and the installed package include this same file. Not find_package(Torch): docs/adr/0001.
if(NOT EXISTS "${TRIREME_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No libtorch in '${TRIREME_TORCH_DIR}': run tools/setup.sh, or set TRIREME_TORCH_DIR to the folder of a torch package (it holds include/ and lib/)")
endif()

foreach(header include/torch/headeronly/version.h include/torch/csrc/api/include/torch/version.h)
  if(NOT torch_version_lines AND EXISTS "${TRIREME_TORCH_DIR}/${header}")
    file(STRINGS "${TRIREME_TORCH_DIR}/${header}" torch_version_lines
         REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  endif()
endforeach()
list(TRANSFORM torch_version_lines REPLACE "^.* ([0-9]+)$" "\\1")
list(JOIN torch_version_lines "." TRIREME_TORCH_FOUND_VERSION)
if(TRIREME_TORCH_FOUND_VERSION VERSION_LESS TRIREME_TORCH_MINIMUM_VERSION)
  message(FATAL_ERROR "libtorch ${TRIREME_TORCH_FOUND_VERSION} in ${TRIREME_TORCH_DIR} is too old: ${TRIREME_TORCH_MINIMUM_VERSION} or later is needed")
endif()

# libtorch_cpu of a CUDA wheel loads cudart and cupti; the wheels keep them beside the torch folder.
get_filename_component(torch_parent "${TRIREME_TORCH_DIR}" DIRECTORY)
file(GLOB TRIREME_TORCH_RUNTIME_DIRS "${torch_parent}/nvidia/*/lib")

add_library(trireme_torch INTERFACE IMPORTED GLOBAL)
target_include_directories(trireme_torch INTERFACE
  "${TRIREME_TORCH_DIR}/include" "${TRIREME_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(trireme_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC)
foreach(directory IN LISTS TRIREME_TORCH_RUNTIME_DIRS)
  target_link_options(trireme_torch INTERFACE "-Wl,-rpath-link,${directory}")
endforeach()
# Full paths: CMake then puts their folder into the run path of what links them, built or installed.
target_link_libraries(trireme_torch INTERFACE
  -Wl,--push-state,--no-as-needed "${TRIREME_TORCH_DIR}/lib/libtorch_cpu.so" "${TRIREME_TORCH_DIR}/lib/libc10.so"
  -Wl,--pop-state Threads::Threads)
