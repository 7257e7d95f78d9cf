# Target trireme_torch: libtorch for CPU use, from the folder of a torch package. Not find_package(Torch):
# a CUDA wheel's config is a fatal error where no CUDA toolkit is, and links the whole CUDA set.
file(STRINGS "${PROJECT_SOURCE_DIR}/tools/versions.sh" version_lines REGEX "^TORCH_[A-Z_]*VERSION=")
foreach(line IN LISTS version_lines)
  string(REGEX MATCH "^([A-Z_]+)=(.*)$" _ "${line}")
  set(TRIREME_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
endforeach()

if(NOT TRIREME_TORCH_DIR AND DEFINED ENV{TRIREME_PYTHON})
  execute_process(COMMAND "$ENV{TRIREME_PYTHON}" -c "import os, torch; print(os.path.dirname(torch.__file__))"
                  OUTPUT_VARIABLE TRIREME_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT TRIREME_TORCH_DIR)
  set(TRIREME_TORCH_DIR "${PROJECT_SOURCE_DIR}/.deps/torch-${TRIREME_TORCH_VERSION}/torch")
endif()
if(NOT EXISTS "${TRIREME_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No libtorch in ${TRIREME_TORCH_DIR}: run tools/setup.sh, or set TRIREME_TORCH_DIR to the folder of a torch package")
endif()

file(STRINGS "${TRIREME_TORCH_DIR}/include/torch/headeronly/version.h" torch_version_lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
if(NOT torch_version_lines)
  file(STRINGS "${TRIREME_TORCH_DIR}/include/torch/csrc/api/include/torch/version.h" torch_version_lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
endif()
list(TRANSFORM torch_version_lines REPLACE "^.* ([0-9]+)$" "\\1")
list(JOIN torch_version_lines "." TRIREME_TORCH_FOUND_VERSION)
if(TRIREME_TORCH_FOUND_VERSION VERSION_LESS TRIREME_TORCH_MINIMUM_VERSION)
  message(FATAL_ERROR "libtorch ${TRIREME_TORCH_FOUND_VERSION} in ${TRIREME_TORCH_DIR} is too old: ${TRIREME_TORCH_MINIMUM_VERSION} or later is needed")
endif()
message(STATUS "libtorch ${TRIREME_TORCH_FOUND_VERSION} in ${TRIREME_TORCH_DIR}")

# libtorch_cpu of a CUDA wheel loads cudart and cupti; the wheels keep them beside the torch folder.
get_filename_component(torch_parent "${TRIREME_TORCH_DIR}" DIRECTORY)
file(GLOB TRIREME_TORCH_RUNTIME_DIRS "${torch_parent}/nvidia/*/lib")

add_library(trireme_torch INTERFACE)
set_target_properties(trireme_torch PROPERTIES EXPORT_NAME torch)
target_include_directories(trireme_torch SYSTEM INTERFACE
  "$<BUILD_INTERFACE:${TRIREME_TORCH_DIR}/include>"
  "$<BUILD_INTERFACE:${TRIREME_TORCH_DIR}/include/torch/csrc/api/include>")
target_compile_definitions(trireme_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC)
target_link_options(trireme_torch INTERFACE
  "$<BUILD_INTERFACE:-Wl,-rpath,${TRIREME_TORCH_DIR}/lib>"
  "$<BUILD_INTERFACE:-L${TRIREME_TORCH_DIR}/lib>")
foreach(directory IN LISTS TRIREME_TORCH_RUNTIME_DIRS)
  target_link_options(trireme_torch INTERFACE "$<BUILD_INTERFACE:-Wl,-rpath-link,${directory}>")
endforeach()
target_link_libraries(trireme_torch INTERFACE
  -Wl,--push-state,--no-as-needed torch_cpu c10 -Wl,--pop-state Threads::Threads)

# One precompiled header for everything above the torch line: tensors, autograd, nn::Module and c10d.
# <torch/torch.h> in it would be slower: every file would then pay 5 s for its implicit instantiations.
file(WRITE "${CMAKE_BINARY_DIR}/pch/torch_pch.cpp.in" "// Only here to give the precompiled header a home.\n")
configure_file("${CMAKE_BINARY_DIR}/pch/torch_pch.cpp.in" "${CMAKE_BINARY_DIR}/pch/torch_pch.cpp" COPYONLY)
add_library(trireme_torch_pch STATIC "${CMAKE_BINARY_DIR}/pch/torch_pch.cpp")
target_link_libraries(trireme_torch_pch PRIVATE trireme_torch trireme_flags)
target_precompile_headers(trireme_torch_pch PRIVATE
  <ATen/core/Tensor.h> <ATen/ops/empty.h> <ATen/ops/zeros.h> <ATen/ops/from_blob.h>
  <torch/csrc/autograd/variable.h> <torch/nn/module.h>
  <torch/csrc/distributed/c10d/Backend.hpp> <torch/csrc/distributed/c10d/PrefixStore.hpp>
  <functional> <map> <memory> <mutex> <string> <thread> <vector>)

function(trireme_use_torch_pch target)
  target_precompile_headers(${target} REUSE_FROM trireme_torch_pch)
endfunction()
