# Compiler settings that every target of the project shares.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

find_program(TRIREME_CCACHE ccache)
if(TRIREME_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines and time_macros are what ccache asks for to cache objects built with a
  # precompiled header; without hash_dir a second build folder hits the same entries.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;CCACHE_NOHASHDIR=1;CCACHE_BASEDIR=${PROJECT_SOURCE_DIR};${TRIREME_CCACHE}")
endif()

# lld takes a quarter of the processor time of GNU ld for a program, and the tests are 87 programs.
find_program(TRIREME_LLD ld.lld)
if(TRIREME_LLD)
  add_link_options(-fuse-ld=lld)
endif()

add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: a false alarm on "text" + std::string, gone with GCC 13.
  target_compile_options(trireme_flags INTERFACE -Wno-restrict)
endif()
if(TRIREME_WERROR)
  target_compile_options(trireme_flags INTERFACE -Werror)
endif()
if(TRIREME_SANITIZE)
  add_compile_options(-fsanitize=${TRIREME_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TRIREME_SANITIZE})
endif()
if(TRIREME_HARDEN AND NOT TRIREME_SANITIZE)
  # Checked copies, stack guards, marked branch targets, and tables of functions that are read-only once loaded.
  # Sanitizers replace the checked copies; without optimisation the C library has none.
  include(CheckCXXCompilerFlag)
  foreach(flag -fstack-protector-strong -fcf-protection)
    string(MAKE_C_IDENTIFIER "TRIREME_HAS${flag}" known)
    check_cxx_compiler_flag(${flag} ${known})
    if(${known})
      add_compile_options(${flag})
    endif()
  endforeach()
  # Level 3 needs GCC 12 or clang 9; an older compiler takes it for 2. Without optimisation the C library warns of it.
  add_compile_options("$<$<NOT:$<CONFIG:>>:SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3>")
  add_link_options(LINKER:-z,relro LINKER:-z,now)
endif()
find_package(Threads REQUIRED)
