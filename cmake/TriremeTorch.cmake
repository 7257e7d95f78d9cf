# Chooses the torch package of this build: TRIREME_TORCH_DIR, else the torch that the Python named by
# TRIREME_PYTHON imports, else the one that tools/setup.sh fetched. Then the precompiled header over it.
file(STRINGS "${PROJECT_SOURCE_DIR}/tools/versions.sh" version_lines REGEX "^TORCH_[A-Z_]*VERSION=")
foreach(line IN LISTS version_lines)
  string(REGEX MATCH "^([A-Z_]+)=(.*)$" _ "${line}")
  set(TRIREME_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
endforeach()

if(NOT TRIREME_TORCH_DIR AND DEFINED ENV{TRIREME_PYTHON})
  execute_process(COMMAND "$ENV{TRIREME_PYTHON}" -c
                          "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                  OUTPUT_VARIABLE TRIREME_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(TRIREME_TORCH_DIR "${TRIREME_TORCH_DIR}" CACHE PATH "Folder of the torch package" FORCE)
endif()
if(NOT TRIREME_TORCH_DIR)
  set(TRIREME_TORCH_DIR "${PROJECT_SOURCE_DIR}/.deps/torch-${TRIREME_TORCH_VERSION}/torch")
endif()
include(TriremeTorchTarget)
message(STATUS "libtorch ${TRIREME_TORCH_FOUND_VERSION} in ${TRIREME_TORCH_DIR}")

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

# An executable would be compiled with -fPIE, and a precompiled header only fits the flags that made it.
function(trireme_use_torch_pch target)
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM trireme_torch_pch)
endfunction()

include(TriremeGloo)
