# Read by CMake and by CTest. trireme_schedule(TENTHS TEST...) gives tests what tests/schedule.txt says of them, or of their
# suites: COST, so that CTest begins with the longest, and PROCESSORS, in tenths of a core. A test that is not listed takes
# TENTHS. tools/test.sh gives CTest ten lanes for each core, so that tests that mostly wait run beside others.
function(trireme_schedule tenths)
  file(STRINGS "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../tests/schedule.txt" rows REGEX "^[^#]")
  foreach(row IN LISTS rows)
    string(REGEX MATCH "^([^ ]+) +([0-9]+) +([0-9]+)" row "${row}")
    set("seconds_${CMAKE_MATCH_1}" ${CMAKE_MATCH_2})
    set("tenths_${CMAKE_MATCH_1}" ${CMAKE_MATCH_3})
  endforeach()
  foreach(test IN LISTS ARGN)
    set(name "${test}")
    if(NOT DEFINED "seconds_${name}")
      string(REGEX REPLACE "[.].*" "" name "${test}")
    endif()
    if(DEFINED "seconds_${name}")
      set_tests_properties("${test}" PROPERTIES COST ${seconds_${name}} PROCESSORS ${tenths_${name}})
    else()
      set_tests_properties("${test}" PROPERTIES PROCESSORS ${tenths})
    endif()
  endforeach()
endfunction()

# trireme_cases_at_once(SUITE VARIABLE): how many cases of a suite that is one test run at once.
function(trireme_cases_at_once suite variable)
  file(STRINGS "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../tests/schedule.txt" rows REGEX "^${suite} ")
  set(${variable} 1 PARENT_SCOPE)
  if(rows MATCHES "^[^ ]+ +[0-9]+ +[0-9]+ +([0-9]+)")
    set(${variable} ${CMAKE_MATCH_1} PARENT_SCOPE)
  endif()
endfunction()

# Those that CMake has added in this directory.
macro(trireme_schedule_directory)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/schedule.txt")
  get_property(tests_here DIRECTORY PROPERTY TESTS)
  trireme_schedule(10 ${tests_here})
endmacro()
