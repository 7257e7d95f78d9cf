# Install rules: `make install PREFIX=...` leaves programs, headers, libraries and a package that
# find_package(Trireme) reads. Target Trireme::trireme is everything; Trireme::MODULE is one module.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(modules GLOBAL PROPERTY TRIREME_MODULES)
add_library(trireme_everything INTERFACE)
add_library(Trireme::trireme ALIAS trireme_everything)
set_target_properties(trireme_everything PROPERTIES EXPORT_NAME trireme)
target_link_libraries(trireme_everything INTERFACE ${modules})

# What has to be built before `cmake --install`: tests and benchmarks do not.
add_custom_target(trireme_installed DEPENDS ${modules})

install(TARGETS trireme_everything ${modules} EXPORT TriremeTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
# The run path of the programs names the folder of libtorch.
set_target_properties(trireme trireme-torch PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
add_dependencies(trireme_installed trireme trireme-torch)
install(TARGETS trireme trireme-torch RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
if(TARGET trireme_cuda)  # loaded at run time where a GPU is
  add_dependencies(trireme_installed trireme_cuda)
  install(TARGETS trireme_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/trireme" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "internal" EXCLUDE)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/Trireme")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TriremeConfig.cmake.in"
  "${CMAKE_BINARY_DIR}/package/TriremeConfig.cmake" INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/package/TriremeConfigVersion.cmake"
  VERSION "${PROJECT_VERSION}" COMPATIBILITY SameMinorVersion)
install(EXPORT TriremeTargets NAMESPACE Trireme:: DESTINATION "${package_folder}")
install(FILES "${CMAKE_BINARY_DIR}/package/TriremeConfig.cmake"
              "${CMAKE_BINARY_DIR}/package/TriremeConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/TriremeTorchTarget.cmake"
        DESTINATION "${package_folder}")
