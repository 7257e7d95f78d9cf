# Programs that tools/gpu_bundle.sh takes to a machine with a GPU: they look for libraries beside themselves.
set(gpu_bundle_programs gpu multiproc bench_training_step stand_in_device)
foreach(program IN LISTS gpu_bundle_programs)
  if(NOT TARGET ${program})
    return()
  endif()
endforeach()
trireme_run_path("${TRIREME_BUNDLE_RUN_PATH}${TRIREME_BUILD_RUN_PATH}" ${gpu_bundle_programs})
# A run path of the old kind holds for libraries of libraries as well: libpng finds its libz.
foreach(program IN LISTS gpu_bundle_programs)
  target_link_options(${program} PRIVATE LINKER:--disable-new-dtags)
endforeach()
add_custom_target(gpu_bundle_programs DEPENDS trireme trireme-torch ${gpu_bundle_programs})
if(TARGET trireme_cuda)
  add_dependencies(gpu_bundle_programs trireme_cuda)
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/TriremeGpuBundle.cmake.in"
               "${CMAKE_BINARY_DIR}/package/TriremeGpuBundle.cmake" @ONLY)
