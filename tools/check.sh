#!/usr/bin/env bash
# Everything a change has to pass: format, layout, build, tidy, tests.
#
#   tools/check.sh [--all] [--sanitizers] [format] [layout] [build] [tidy] [tests]
#
# Without names of steps it does all five. clang-tidy reads sources below the torch line always and those
# above it when they differ from the last commit but one (a source that includes libtorch takes it 20 s);
# --all reads every source. --sanitizers also builds and runs the unit tests of the modules below the torch
# line under ThreadSanitizer, and those and one of tensors under AddressSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."

all= sanitizers= steps=()
for argument in "$@"; do
  case $argument in
    --all) all=yes ;;
    --sanitizers) sanitizers=yes ;;
    format|layout|build|tidy|tests) steps+=("$argument") ;;
    *) echo "check: unknown argument '$argument'; known: --all --sanitizers format layout build tidy tests" >&2; exit 2 ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || [ -n "$sanitizers" ] || steps=(format layout build tidy tests)
tools/setup.sh build test check

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
  say "format"
  local wrong
  mapfile -t wrong < <(sources '*.h' '*.cpp' | xargs clang-format-14 --dry-run 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning:.*/\1/p' | sort -u)
  [ ${#wrong[@]} -eq 0 ] || { echo "not formatted; run: clang-format-14 -i ${wrong[*]}"; exit 1; }
}

check_layout() {
  say "layout"
  tools/check_layout.py
}

check_build() {
  say "build"
  tools/build.sh release
}

check_tidy() {
  say "tidy"
  # Configured without the precompiled header: clang cannot read the compiler's. Nothing is built here.
  cmake --preset tidy >/dev/null
  local base module files=()
  if [ -n "$all" ]; then
    mapfile -t files < <(sources 'trireme/*.cpp' 'cli/*.cpp' 'tests/*.cpp' 'examples/*.cpp')
  else
    base=$(git rev-parse --verify --quiet HEAD~1 || git rev-parse HEAD)
    mapfile -t files < <(
      { for module in $(below_the_torch_line); do sources "trireme/$module/*.cpp" "tests/unit/$module/*.cpp"; done
        sources 'cli/*.cpp'
        { git diff --name-only --diff-filter=d "$base" -- '*.cpp'; git ls-files --others --exclude-standard -- '*.cpp'; } \
          | grep -E '^(trireme|cli|tests|examples)/' || true; } | sort -u)
    echo "${#files[@]} sources: those below the torch line, and those changed since $(git rev-parse --short "$base") (--all: every one)"
  fi
  # Only what this machine builds: the CUDA object's sources have no command where no toolkit is.
  mapfile -t files < <(tools/compiled_sources.py build/tidy "${files[@]}")
  printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 2 clang-tidy-14 -p build/tidy --quiet --extra-arg=-Wno-unknown-warning-option 2>&1 \
    | { grep -vE '^[0-9]+ warnings? generated|^Suppressed|^Use -header-filter' || true; }
}

check_tests() {
  say "tests"
  tools/test.sh
}

check_sanitizers() {
  local preset module tests
  for preset in tsan asan; do
    say "$preset"
    tests=()
    for module in $(below_the_torch_line); do tests+=("unit_$module"); done
    [ "$preset" = tsan ] || tests+=(unit_optim)
    tools/build.sh "$preset" "${tests[@]}"
    for module in "${tests[@]}"; do "build/$preset/bin/$module" --gtest_brief=1; done
  done
}

for step in "${steps[@]}"; do "check_$step"; done
[ -z "$sanitizers" ] || check_sanitizers
say "all checks passed"
