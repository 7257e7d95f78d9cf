# libtrireme_ucx.so: every *_ucx.cpp of the modules, built where UCX's headers and library are. Nothing links it:
# it is loaded at run time where comm.network asks for it.
find_path(TRIREME_UCX_INCLUDE ucp/api/ucp.h)
find_library(TRIREME_UCP_LIBRARY ucp)
find_library(TRIREME_UCS_LIBRARY ucs)
if(NOT TRIREME_UCX_INCLUDE OR NOT TRIREME_UCP_LIBRARY OR NOT TRIREME_UCS_LIBRARY)
  message(STATUS "UCX object: not built: UCX is nowhere (package libucx-dev)")
  return()
endif()
message(STATUS "UCX object: built with ${TRIREME_UCP_LIBRARY}")

file(GLOB_RECURSE ucx_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/trireme/*_ucx.cpp")
add_library(trireme_ucx SHARED ${ucx_sources})
target_compile_features(trireme_ucx PRIVATE cxx_std_20)
# What it needs of base it has itself: the program that loads it shows it nothing.
target_link_libraries(trireme_ucx PRIVATE trireme::base trireme_flags "${TRIREME_UCP_LIBRARY}" "${TRIREME_UCS_LIBRARY}")
target_link_options(trireme_ucx PRIVATE LINKER:--exclude-libs,ALL LINKER:--no-undefined)
target_include_directories(trireme_ucx PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(trireme_ucx SYSTEM PRIVATE "${TRIREME_UCX_INCLUDE}")
