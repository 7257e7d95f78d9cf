#!/usr/bin/env bash
# Fuzzes the readers of bytes that come from outside (tests/fuzz/): builds their targets with clang, libFuzzer,
# AddressSanitizer and UndefinedBehaviorSanitizer, and runs one after the other.
#
#   tools/fuzz.sh [--runs N | --seconds S] [NAME...]      (default: all targets, 5 seconds each)
#
# Each begins with tests/fuzz/corpus/NAME and with what earlier runs have left in build/fuzz/corpus/NAME. An input
# may take 1 s, and the process 512 MiB, of which libtorch and the sanitizer take half. What broke a promise is left
# in build/fuzz/found/ and named with the command that shows it again; the exit code is then 1. The clock of libFuzzer
# goes on while other programs have the cores: an input that was too slow is tried alone, and where it takes less than
# half a second then, the run goes on and the line counts a stall.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
limit=(-max_total_time=5)
runs=0
names=()
while [ $# -gt 0 ]; do
  case $1 in
    --runs) runs=${2:?fuzz: --runs takes a number}; shift 2 ;;
    --seconds) limit=("-max_total_time=${2:?fuzz: --seconds takes a number}"); shift 2 ;;
    -*) echo "fuzz: unknown option $1; there are --runs N and --seconds S" >&2; exit 2 ;;
    *) names+=("$1"); shift ;;
  esac
done
for name in "${names[@]}"; do
  [ -f "tests/fuzz/${name}_fuzz.cpp" ] && continue
  echo "fuzz: there is no target '$name'; there are: $(cd tests/fuzz && ls ./*_fuzz.cpp | sed 's|^./||; s|_fuzz.cpp||' | xargs)" >&2
  exit 2
done
command -v clang++ >/dev/null || { echo "fuzz: clang++ is not here; install clang and libclang-rt-dev (it has libFuzzer)" >&2; exit 2; }
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(sed -n 's/^fuzz_target(\([a-z_]*\).*/\1/p' tests/fuzz/CMakeLists.txt)

mkdir -p build/fuzz/found
cmake --preset fuzz >build/fuzz/configure.log 2>&1 || { grep -A3 "CMake Error" build/fuzz/configure.log >&2; exit 2; }
cmake --build build/fuzz --target "${names[@]/#/fuzz_}"

# Targets write files, and one that ends in a fault leaves them.
scratch=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" trireme-fuzz-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
number_in() { sed -n "s/^stat::$1: *//p" "$2"; }
# Whether the input NAME FILE takes less than half a second.
is_fast() {
  local ms
  for _ in 1 2 3 4 5 6; do
    ms=$("build/fuzz/bin/fuzz_$1" -timeout=1 "$2" 2>&1 | sed -n 's/^Executed .* in \([0-9]*\) ms.*/\1/p')
    [ -n "$ms" ] && [ "$ms" -lt 500 ] && return
  done
  return 1
}
# Runs the target NAME to its end: sets inputs, peak, stalls; 1: an input broke a promise.
run_target() {
  local name=$1 log=build/fuzz/found/$1.log count mib input
  inputs=0 peak=0 stalls=0
  while [ "$inputs" -lt "$runs" ] || [ "$runs" = 0 ]; do
    [ "$runs" = 0 ] || limit=("-runs=$((runs - inputs))")
    local ended=0
    ASAN_OPTIONS=quarantine_size_mb=16 TMPDIR=$scratch "build/fuzz/bin/fuzz_$name" "build/fuzz/corpus/$name" \
      "tests/fuzz/corpus/$name" "${limit[@]}" -max_len=8192 -timeout=1 -rss_limit_mb=512 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/found/$name-" >"$log" 2>&1 || ended=$?
    count=$(number_in number_of_executed_units "$log") mib=$(number_in peak_rss_mb "$log")
    inputs=$((inputs + ${count:-0}))
    [ "${mib:-0}" -le "$peak" ] || peak=$mib
    [ "$ended" != 0 ] || return 0
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    grep -q 'ERROR: libFuzzer: timeout' "$log" && is_fast "$name" "$input" || return 1
    rm -f "$input"
    stalls=$((stalls + 1))
  done
}

faults=0
for name in "${names[@]}"; do
  mkdir -p "build/fuzz/corpus/$name"
  log=build/fuzz/found/$name.log
  if run_target "$name"; then
    echo "$name: $inputs inputs, at most $peak MiB, $stalls stalls, no fault"
  else
    faults=$((faults + 1))
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    echo "$name: $(grep -aEm1 'runtime error|terminate called|ERROR: (libFuzzer|AddressSanitizer|LeakSanitizer)' "$log" || echo "it ended early")" >&2
    echo "  all that was said: $log" >&2
    [ -z "$input" ] || echo "  again: build/fuzz/bin/fuzz_$name $input" >&2
  fi
done
exit $((faults > 0))
