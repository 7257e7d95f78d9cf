# Read by CTest. trireme_label_security(LABEL TEST...): those whose suite is named Security... have the label `security`
# as well, so that `ctest -L security` runs what protects against others, of all kinds of tests.
function(trireme_label_security label)
  foreach(test IN LISTS ARGN)
    if(test MATCHES "(^|/)Security")
      set_tests_properties("${test}" PROPERTIES LABELS "${label};security")
    endif()
  endforeach()
endfunction()
