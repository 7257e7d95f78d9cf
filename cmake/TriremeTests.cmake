add_library(trireme_test_flags INTERFACE)
# Assertions name their file: by its place in the tree, so that ccache knows it again in another clone.
target_compile_options(trireme_test_flags INTERFACE $<$<CONFIG:Release>:-O1> "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
if(TRIREME_UNITY_BATCH)  # what a local name hides may stand in another file
  target_compile_options(trireme_test_flags INTERFACE -Wno-shadow)
endif()

# trireme_tests(NAME LABEL label SOURCES file... LIBRARIES target... [TORCH] [TIMEOUT seconds] [SERIAL])
# One test program; each of its test cases is a CTest of its own, with that label. Loading libtorch takes a third of a
# second: of a program that does, each suite is a CTest, whose cases are processes forked after the loading
# (tests/support/forked_cases_main.cpp). A release compiles four of its sources as one, and little optimised: a fifth of
# a source's time is optimising, two fifths are libtorch's headers.
# Tests of suites that are named Security... have the label `security` as well.
function(trireme_tests name)
  cmake_parse_arguments(ARG "TORCH;SERIAL" "LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_SOURCES)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} trireme_flags trireme_test_flags GTest::gmock GTest::gtest)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  trireme_batch_sources(${name} MOST 4)
  set(properties LABELS ${ARG_LABEL} ENVIRONMENT "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/tests/cache")
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  if(ARG_TORCH)
    trireme_use_torch_pch(${name})
    target_link_libraries(${name} PRIVATE trireme_forked_cases)
    trireme_discover_suites(${name} ${ARG_TIMEOUT} ${properties})
  else()
    target_link_libraries(${name} PRIVATE GTest::gmock_main)
    trireme_discovery_script(${name}_machine "include(\"${PROJECT_SOURCE_DIR}/cmake/TriremeMachine.cmake\")
trireme_list_anew_elsewhere(\"${CMAKE_CURRENT_BINARY_DIR}\" ${name})")
    gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      PROPERTIES ${properties} TIMEOUT ${ARG_TIMEOUT} SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
    set(tenths 10)
    if(ARG_LABEL MATCHES "multiproc|fault")  # they wait for processes that start and end
      set(tenths 6)
    endif()
    trireme_discovery_script(${name}_properties "include(\"${PROJECT_SOURCE_DIR}/cmake/TriremeLabels.cmake\")
trireme_label_security(${ARG_LABEL} \${${name}_TESTS})
include(\"${PROJECT_SOURCE_DIR}/cmake/TriremeSchedule.cmake\")
trireme_schedule(${tenths} \${${name}_TESTS})")
  endif()
endfunction()

# What CTest reads when it starts, after what it was told before.
function(trireme_discovery_script name content)
  file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/${name}.cmake" CONTENT "${content}\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}.cmake")
endfunction()

# Each suite of a program is a CTest, found when CTest starts; each case has those seconds.
function(trireme_discover_suites program seconds)
  set(properties "${ARGN}")
  trireme_discovery_script(${program}_suites "set(program \"$<TARGET_FILE:${program}>\")
set(name ${program})
set(seconds ${seconds})
set(properties \"${properties}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/TriremeSuites.cmake\")")
endfunction()
