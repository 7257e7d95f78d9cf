#!/usr/bin/env bash
# Sets up, configures and builds one preset (default: release) into build/PRESET.
#
#   tools/build.sh [PRESET] [TARGET...]
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
tools/setup.sh build test
build=build/$preset
# A configuration is repeated where it never finished, and where another libtorch is asked for by name.
configured=$(sed -n 's/^TRIREME_TORCH_DIR:[A-Z]*=//p' "$build/CMakeCache.txt" 2>/dev/null || true)
if [ ! -f "$build/build.ninja" ] || [ "${TRIREME_TORCH_DIR:-$configured}" != "$configured" ]; then
  mkdir -p "$build"
  rm -f "$build/CMakeCache.txt"
  cmake --preset "$preset" >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
fi
cmake --build "$build" ${@:+--target "$@"}
