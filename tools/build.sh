#!/usr/bin/env bash
# Sets up, configures and builds one preset (default: release) into build/PRESET.
#
#   tools/build.sh [PRESET] [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
tools/setup.sh build test
build=build/$preset
if [ ! -f "$build/build.ninja" ]; then
  mkdir -p "$build"
  cmake --preset "$preset" >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
fi
cmake --build "$build" ${@:+--target "$@"}
