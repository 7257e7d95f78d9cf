# trireme_batch_sources(TARGET [MOST n] [TORCH]): its sources are compiled several at a time, where that was chosen,
# and twice as many above the torch line: what libtorch's headers leave to each compilation takes GCC four seconds
# before the first line of ours.
function(trireme_batch_sources target)
  cmake_parse_arguments(ARG "TORCH" "MOST" "" ${ARGN})
  set(batch ${TRIREME_UNITY_BATCH})
  if(ARG_MOST AND batch GREATER ARG_MOST)
    set(batch ${ARG_MOST})
  endif()
  if(ARG_TORCH)
    math(EXPR batch "2 * ${batch}")
  endif()
  if(batch)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
    # A type of a header below internal/ that holds one of an unnamed namespace is seen as included. GCC collects garbage
    # when its heap doubles, the precompiled header included: most batches end before 1.5 GB and need no collection.
    target_compile_options(${target} PRIVATE
      $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage;--param=ggc-min-heapsize=725000>)
  endif()
endfunction()

# trireme_spare_optimiser(TARGET): nothing in it runs often enough to be worth the optimiser's time in a release.
function(trireme_spare_optimiser target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# trireme_module(NAME [TORCH] [DEPENDS module...] [LIBRARIES target...])
# One static library per folder of trireme/, target trireme_NAME, alias trireme::NAME.
# TORCH says that the module stands above the torch line; LIBRARIES are libraries from outside that it
# hides behind its own headers. A source whose name ends in _cuda.cpp belongs to the optional CUDA object
# and is left out here.
function(trireme_module name)
  cmake_parse_arguments(ARG "TORCH" "" "DEPENDS;LIBRARIES" ${ARGN})
  set(target trireme_${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/trireme/${name}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "_(cuda|ucx)\\.cpp$")
  add_library(${target} STATIC ${sources})
  add_library(trireme::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include>")
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:trireme_flags>)
  if(ARG_TORCH)
    trireme_batch_sources(${target} TORCH)
  else()
    trireme_batch_sources(${target})
  endif()
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(${target} PUBLIC trireme_${dependency})
  endforeach()
  target_link_libraries(${target} PRIVATE ${ARG_LIBRARIES})
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC trireme_torch)
    trireme_use_torch_pch(${target})
  else()
    target_link_libraries(${target} PUBLIC Threads::Threads)
  endif()
  set_property(GLOBAL APPEND PROPERTY TRIREME_MODULES ${target})
endfunction()
