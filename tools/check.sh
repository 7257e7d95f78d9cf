#!/usr/bin/env bash
# Everything a change has to pass: format, layout, build, tidy, tests.
#
#   tools/check.sh [--all] [format] [layout] [build] [tidy] [tests] [sanitizers] [torch-minimum]
#
# Without names of steps it does the first five, and with --all all of them, each to its end, for hours. clang-tidy
# reads sources below the torch line always and those above it when they differ from the last commit but one; --all
# reads every source, and runs all rows of the table of modes. sanitizers: all tests under AddressSanitizer and
# UndefinedBehaviorSanitizer, and the unit tests of the modules below the torch line under ThreadSanitizer.
# torch-minimum: all tests on the oldest libtorch that is built with. The last line names the steps that failed.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. tools/versions.sh

all= steps=()
for argument in "$@"; do
  case $argument in
    --all) all=--all ;;
    format|layout|build|tidy|tests|sanitizers|torch-minimum) steps+=("$argument") ;;
    *) echo "check: unknown argument '$argument'; known: --all format layout build tidy tests sanitizers torch-minimum" >&2; exit 2 ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || steps=(format layout build tidy tests ${all:+sanitizers torch-minimum})

say() { printf '\n== %s\n' "$*"; }

sources() {  # sources PATTERN...: files of the tree, whether in git yet or not, that are there
  git ls-files --cached --others --exclude-standard -- "$@" | sort -u | while read -r file; do
    [ ! -f "$file" ] || echo "$file"
  done
}

below_the_torch_line() {  # modules that CMakeLists.txt builds without TORCH
  sed -n 's/^trireme_module(\([a-z_]*\).*/\1 &/p' CMakeLists.txt | grep -v ' TORCH' | cut -d' ' -f1
}

check_format() {
  tools/setup.sh check
  local wrong
  mapfile -t wrong < <(sources '*.h' '*.cpp' | xargs clang-format-14 --dry-run 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning:.*/\1/p' | sort -u)
  [ ${#wrong[@]} -eq 0 ] || { echo "not formatted; run: clang-format-14 -i ${wrong[*]}"; exit 1; }
}

check_layout() {
  tools/check_layout.py
}

check_build() {
  tools/build.sh release
}

check_tidy() {
  tools/setup.sh build test check
  # Configured without the precompiled header: clang cannot read the compiler's. Nothing is built here.
  local base module build=build/tidy files=()
  if [ -n "$all" ]; then  # in the batches of a release: libtorch's headers are read once for each
    build=build/tidy-all
    cmake --preset tidy -B "$build" -D TRIREME_UNITY_BATCH=6 >/dev/null
    mapfile -t files < <(tools/compiled_sources.py "$build" | grep -v '/pch/')
    echo "all sources, in ${#files[@]} batches"
  else
    cmake --preset tidy >/dev/null
    base=$(git rev-parse --verify --quiet HEAD~1 || git rev-parse HEAD)
    mapfile -t files < <(
      { for module in $(below_the_torch_line); do sources "trireme/$module/*.cpp" "tests/unit/$module/*.cpp"; done
        sources 'cli/*.cpp'
        { git diff --name-only --diff-filter=d "$base" -- '*.cpp'; git ls-files --others --exclude-standard -- '*.cpp'; } \
          | grep -E '^(trireme|cli|tests|examples)/' || true; } | sort -u)
    # Only what this machine builds: the CUDA object's sources have no command where no toolkit is.
    mapfile -t files < <(tools/compiled_sources.py "$build" "${files[@]}")
    echo "${#files[@]} sources: those below the torch line, and those changed since $(git rev-parse --short "$base") (--all: every one)"
  fi
  printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 ".deps/clang-tidy-$CLANG_TIDY_VERSION/clang_tidy/data/bin/clang-tidy" -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations --extra-arg=-Wno-unused-lambda-capture ${all:+--checks=-bugprone-suspicious-include --extra-arg=-Wno-shadow} 2>&1 \
    | { grep -vE '^[0-9]+ warnings? generated|^Suppressed|^Use -header-filter' || true; }
}

check_tests() {
  TRIREME_TEST_ALL_MODES=${all:+1} tools/test.sh
}

run_whole() {  # run_whole PRESET TEST_PROGRAM...: each in one process of its own, as many at a time as there are cores
  local build=build/$1
  shift
  mkdir -p "$build/tests"
  printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -c '
    log=$1/tests/$2.log
    if "$1/bin/$2" --gtest_brief=1 >"$log" 2>&1; then echo "$2: $(grep -F "[  PASSED  ]" "$log")"; else
      grep -E "FAILED|ERROR: |runtime error: |WARNING: ThreadSanitizer" "$log" | sort | uniq -c
      echo "$2 failed; all that it said: $log"; exit 1
    fi' _ "$build" {}
}

check_sanitizers() {
  local module tests=() failed=()
  tools/build.sh asan
  mapfile -t tests < <(cd tests/unit && printf 'unit_%s\n' *)
  run_whole asan "${tests[@]}" fuzz_corpora || failed+=("AddressSanitizer: unit tests")
  TRIREME_PRESET=asan tools/test.sh -LE unit || failed+=("AddressSanitizer: tests of several processes")
  tests=()
  for module in $(below_the_torch_line); do [ ! -d "tests/unit/$module" ] || tests+=("unit_$module"); done
  tools/build.sh tsan "${tests[@]}"
  TSAN_OPTIONS=suppressions=$PWD/tools/tsan.supp run_whole tsan "${tests[@]}" || failed+=(ThreadSanitizer)
  [ ${#failed[@]} -eq 0 ] || { printf 'failed under %s\n' "${failed[@]}"; exit 1; }
}

check_torch-minimum() {
  tools/setup.sh torch-minimum
  TRIREME_PRESET=torch-minimum TRIREME_TORCH_DIR=$PWD/.deps/torch-$TORCH_MINIMUM_VERSION/torch tools/test.sh
}

if [ ${#steps[@]} -eq 1 ]; then
  say "${steps[0]}"
  "check_${steps[0]}"
  exit
fi
failed=()
for step in "${steps[@]}"; do "$0" $all "$step" || failed+=("$step"); done
[ ${#failed[@]} -eq 0 ] || { say "failed: ${failed[*]}"; exit 1; }
say "all checks passed"
