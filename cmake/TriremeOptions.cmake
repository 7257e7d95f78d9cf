# What a person may choose when configuring.
option(TRIREME_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TRIREME_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(TRIREME_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TRIREME_BUILD_FUZZ "Build the fuzz targets (clang with libFuzzer)" OFF)
option(TRIREME_HARDEN "Stack guards, checked copies, marked branch targets, read-only tables of functions" ON)
option(TRIREME_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
set(TRIREME_UNITY_BATCH 0 CACHE STRING
    "How many sources of a module are compiled as one (0: each alone); the release preset says 6")
set(TRIREME_SANITIZE "" CACHE STRING "Sanitizers to build with, as for -fsanitize= (address,undefined or thread)")
set(TRIREME_TORCH_DIR "$ENV{TRIREME_TORCH_DIR}" CACHE PATH
    "Folder of the torch package (it holds include/ and lib/); default: the one tools/setup.sh put into .deps")
