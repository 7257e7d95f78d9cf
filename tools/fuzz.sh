#!/usr/bin/env bash
# Builds a fuzz target (tests/fuzz/) with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs it.
#
#   tools/fuzz.sh [NAME] [SECONDS]      (default: frame_decoder 60)
#
# What was found stays in build/fuzz/corpus/NAME, and a later run begins with it.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-frame_decoder}
seconds=${2:-60}
command -v clang++ >/dev/null || { echo "fuzz: clang++ is not here; install clang and libclang-rt-dev (it has libFuzzer)" >&2; exit 2; }
mkdir -p build
# The library tells of its branches, too, or nothing would be learnt from them. Loops that are written for vectors are none
# under sanitizers, which clang would have us know.
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ "-DCMAKE_CXX_FLAGS=-Wno-pass-failed -fsanitize=fuzzer-no-link" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTRIREME_BUILD_FUZZ=ON \
  -DTRIREME_BUILD_BENCH=OFF -DTRIREME_BUILD_EXAMPLES=OFF -DTRIREME_SANITIZE=address,undefined >build/fuzz-configure.log 2>&1 \
  || { grep -A3 "CMake Error" build/fuzz-configure.log >&2; exit 2; }
cmake --build build/fuzz --target "fuzz_$name"
mkdir -p "build/fuzz/corpus/$name"
"build/fuzz/bin/fuzz_$name" "build/fuzz/corpus/$name" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1
