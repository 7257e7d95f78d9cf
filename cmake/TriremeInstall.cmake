# Install rules: `make install PREFIX=...` leaves programs, headers, libraries and a package that
# find_package(Trireme) reads; component `bundle` adds libtorch and the other libraries. Target
# Trireme::trireme is everything; Trireme::MODULE is one module.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(modules GLOBAL PROPERTY TRIREME_MODULES)
add_library(trireme_everything INTERFACE)
add_library(Trireme::trireme ALIAS trireme_everything)
set_target_properties(trireme_everything PROPERTIES EXPORT_NAME trireme)
target_link_libraries(trireme_everything INTERFACE ${modules})

# What has to be built before `cmake --install`: tests do not, nor benchmarks that no command starts.
add_custom_target(trireme_installed DEPENDS ${modules})

foreach(library launcher commands topology_report torch_commands)  # what Trireme::app is made of
  set_target_properties(trireme_${library} PROPERTIES EXPORT_NAME cli_${library})
endforeach()
install(TARGETS trireme_everything ${modules} trireme_launcher trireme_commands trireme_topology_report trireme_torch_commands EXPORT TriremeTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
# Where libraries are looked for: in a folder that moves with the programs (a bundle fills it; see
# TriremeBundle.cmake), then in the libtorch of this build. The bundle's programs forget the second.
set(TRIREME_BUNDLE_FOLDER "${CMAKE_INSTALL_LIBDIR}/trireme")
file(RELATIVE_PATH to_bundle "/${CMAKE_INSTALL_BINDIR}" "/${TRIREME_BUNDLE_FOLDER}")
set(TRIREME_BUNDLE_RUN_PATH "$ORIGIN/${to_bundle}/torch/lib:$ORIGIN/${to_bundle}/system")
set(TRIREME_CUDA_BUNDLE_RUN_PATH "$ORIGIN/trireme/torch/lib")
set(TRIREME_BUILD_RUN_PATH ":${TRIREME_TORCH_DIR}/lib")
# trireme_run_path(RUN_PATH TARGET...): the targets have it in the build folder, too. For a longer one at the
# installation CMake would pad the run path of the build with empty entries. The loader takes an empty entry for the
# current directory.
function(trireme_run_path run_path)
  string(REPLACE ":" ";" run_path "${run_path}")
  set_target_properties(${ARGN} PROPERTIES INSTALL_RPATH "${run_path}" BUILD_WITH_INSTALL_RPATH ON)
endfunction()
trireme_run_path("$ORIGIN/${to_bundle}/system" trireme)  # it does not use libtorch
trireme_run_path("${TRIREME_BUNDLE_RUN_PATH}${TRIREME_BUILD_RUN_PATH}" trireme-torch)
add_dependencies(trireme_installed trireme trireme-torch)
install(TARGETS trireme trireme-torch RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
# What `trireme bench` starts lies in libexec, as nobody types it.
set(TRIREME_BENCH_PROGRAMS "")
if(TARGET bench_allreduce)
  set(TRIREME_BENCH_PROGRAMS bench_allreduce bench_pipeline_resnet50 bench_ps bench_rpc_resnet50)
  file(RELATIVE_PATH to_bundle "/${CMAKE_INSTALL_LIBEXECDIR}/trireme" "/${TRIREME_BUNDLE_FOLDER}")
  set(TRIREME_BENCH_BUNDLE_RUN_PATH "$ORIGIN/${to_bundle}/torch/lib:$ORIGIN/${to_bundle}/system")
  trireme_run_path("${TRIREME_BENCH_BUNDLE_RUN_PATH}${TRIREME_BUILD_RUN_PATH}" ${TRIREME_BENCH_PROGRAMS})
  add_dependencies(trireme_installed ${TRIREME_BENCH_PROGRAMS})
  install(TARGETS ${TRIREME_BENCH_PROGRAMS} RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/trireme")
endif()
if(TARGET trireme_cuda)  # loaded at run time where a GPU is
  trireme_run_path("${TRIREME_CUDA_BUNDLE_RUN_PATH}${TRIREME_BUILD_RUN_PATH}" trireme_cuda)
  add_dependencies(trireme_installed trireme_cuda)
  install(TARGETS trireme_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
if(TARGET trireme_ucx)  # loaded at run time where comm.network asks for it; UCX itself is the host's
  add_dependencies(trireme_installed trireme_ucx)
  install(TARGETS trireme_ucx LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/TriremeBundle.cmake.in"
               "${CMAKE_BINARY_DIR}/package/TriremeBundle.cmake" @ONLY)
# What an earlier bundle left would be found before the libtorch of this build; the folder itself is where a
# person may link a libtorch that has moved.
install(CODE "set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${TRIREME_BUNDLE_FOLDER}\")
file(REMOVE_RECURSE \"\${folder}\")
file(MAKE_DIRECTORY \"\${folder}\")")
install(SCRIPT "${CMAKE_BINARY_DIR}/package/TriremeBundle.cmake" COMPONENT bundle EXCLUDE_FROM_ALL)

# Examples, and what shells need to complete commands and options, each where its shell looks.
file(GLOB examples CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/*.toml")
install(FILES ${examples} DESTINATION "${CMAKE_INSTALL_DATADIR}/trireme/examples")
set(completion_bash bash-completion/completions/trireme)
set(completion_zsh zsh/site-functions/_trireme)
set(completion_fish fish/vendor_completions.d/trireme.fish)
set(completions "")
foreach(shell bash zsh fish)
  set(file "${CMAKE_BINARY_DIR}/share/${completion_${shell}}")
  get_filename_component(folder "${file}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(OUTPUT "${file}" COMMAND trireme completion ${shell} > "${file}" DEPENDS trireme VERBATIM)
  list(APPEND completions "${file}")
endforeach()
add_custom_target(trireme_completion ALL DEPENDS ${completions})
add_dependencies(trireme_installed trireme_completion)
install(DIRECTORY "${CMAKE_BINARY_DIR}/share/" DESTINATION "${CMAKE_INSTALL_DATADIR}")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/trireme" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "internal" EXCLUDE)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/Trireme")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TriremeConfig.cmake.in"
  "${CMAKE_BINARY_DIR}/package/TriremeConfig.cmake" INSTALL_DESTINATION "${package_folder}"
  PATH_VARS TRIREME_BUNDLE_FOLDER)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/package/TriremeConfigVersion.cmake"
  VERSION "${PROJECT_VERSION}" COMPATIBILITY SameMinorVersion)
install(EXPORT TriremeTargets NAMESPACE Trireme:: DESTINATION "${package_folder}")
install(FILES "${CMAKE_BINARY_DIR}/package/TriremeConfig.cmake"
              "${CMAKE_BINARY_DIR}/package/TriremeConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/TriremeTorchTarget.cmake"
        DESTINATION "${package_folder}")
