#!/usr/bin/env bash
# Sets up, builds and runs the tests.
#
#   tools/test.sh [CTEST OPTION...]      e.g. tools/test.sh -L unit      tools/test.sh -R ShmAllReduce
#   tools/test.sh --changed [BASE] [CTEST OPTION...]
#
# --changed builds and runs the tests of the modules that differ from the commit BASE (default: the merge base with
# origin/main or main; uncommitted and new files count) and of the modules above them, and prints what it leaves out.
# tools/select_tests.py --help describes the rules.
#
# TRIREME_PRESET chooses the build (default: release), TRIREME_TEST_JOBS how many cores the tests use (default: all,
# one for each 2 GB of memory at most): so many tests that compute run at once, and more of those that wait
# (tests/schedule.txt). The last line is "N passed, N failed, N skipped"; the full log and a JUnit file are in
# build/PRESET/tests/.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
preset=${TRIREME_PRESET:-release}
build=build/$preset

jobs_of_this_machine() {
  local jobs by_memory
  jobs=$(nproc)
  by_memory=$(awk '/^MemTotal:/ { print int($2 / 2000000) }' /proc/meminfo)
  [ "$by_memory" -ge "$jobs" ] || jobs=$by_memory
  [ "$jobs" -ge 1 ] || jobs=1
  echo "$jobs"
}

changed=no base= selected=()
if [ "${1:-}" = --changed ]; then
  changed=yes
  shift
  case ${1:--} in -*) ;; *) base=$1; shift ;; esac
fi

started=$SECONDS
tools/setup.sh build test
set_up=$SECONDS
targets=all
if [ $changed = yes ]; then
  targets=$(python3 tools/select_tests.py targets "$base")
fi
if [ -n "$targets" ]; then
  tools/build.sh "$preset" $targets
else
  tools/build.sh "$preset" help >/dev/null  # configured, and nothing to build
fi
if [ $changed = yes ]; then
  numbers=$(python3 tools/select_tests.py tests "$build" "$base" "$@")
  [ -z "$numbers" ] || selected=(-I "0,0,0,$numbers")
fi
built=$SECONDS

mkdir -p "$build/tests"
rm -f "$build/tests/junit.xml"
lanes=$((10 * ${TRIREME_TEST_JOBS:-$(jobs_of_this_machine)}))  # cmake/TriremeSchedule.cmake counts in tenths of a core
ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$lanes" \
  --test-output-size-passed 1000000 --test-output-size-failed 1000000 \
  --output-junit tests/junit.xml --output-log "$build/tests/ctest.log" "${selected[@]}" "$@" || true

echo
echo "set-up $((set_up - started)) s, build $((built - set_up)) s, tests $((SECONDS - built)) s"
exec python3 tools/test_summary.py "$build/tests/junit.xml"
