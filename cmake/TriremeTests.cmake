add_library(trireme_test_flags INTERFACE)
# Assertions name their file: by its place in the tree, so that ccache knows it again in another clone.
target_compile_options(trireme_test_flags INTERFACE $<$<CONFIG:Release>:-O1> "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
if(TRIREME_UNITY_BATCH)  # what a local name hides may stand in another file
  target_compile_options(trireme_test_flags INTERFACE -Wno-shadow)
endif()

# trireme_tests(NAME LABEL label SOURCES file... LIBRARIES target... [TORCH] [TIMEOUT seconds] [SERIAL])
# One test program; each of its test cases is a CTest of its own, with that label. A release compiles four of its
# sources as one, and little optimised: a fifth of a source's time is optimising, two fifths are libtorch's headers.
function(trireme_tests name)
  cmake_parse_arguments(ARG "TORCH;SERIAL" "LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_SOURCES)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} trireme_flags trireme_test_flags GTest::gmock_main GTest::gtest)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  if(ARG_TORCH)
    trireme_use_torch_pch(${name})
  endif()
  trireme_batch_sources(${name} 4)
  set(properties LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]"
      ENVIRONMENT "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/tests/cache")
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
endfunction()
