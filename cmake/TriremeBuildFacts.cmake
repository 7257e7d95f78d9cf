# cmake -DSOURCE=FOLDER -DVERSION=X -DLIBTORCH=X -DOUTPUT=FILE.cpp -P TriremeBuildFacts.cmake
# Writes cli/build_facts.cpp.in with the commit of the tree, at each build. An unchanged file keeps its time, so that
# nothing is compiled. The commit is "unknown" in a source archive, also if that lies in the repository of another project.
set(COMMIT unknown)
execute_process(COMMAND git -C "${SOURCE}" rev-parse --show-prefix
                RESULT_VARIABLE failed OUTPUT_VARIABLE prefix ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed STREQUAL "0" AND prefix STREQUAL "")
  execute_process(COMMAND git -C "${SOURCE}" rev-parse HEAD
                  RESULT_VARIABLE failed OUTPUT_VARIABLE head ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed STREQUAL "0")
    string(SUBSTRING "${head}" 0 12 COMMIT)
    execute_process(COMMAND git -C "${SOURCE}" --no-optional-locks status --porcelain --untracked-files=no
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND COMMIT "+changes")
    endif()
  endif()
endif()
configure_file("${SOURCE}/cli/build_facts.cpp.in" "${OUTPUT}" @ONLY)
