#!/usr/bin/env bash
# Builds what is installed, and installs it: programs, headers, libraries and the CMake package.
#
#   tools/install.sh PREFIX
#
# The installed package goes on using the libtorch it was built with: choose it with TRIREME_TORCH_DIR
# when the one in .deps/ may go away.
set -euo pipefail
if [ -z "${1:-}" ]; then
  echo "install: say where to: make install PREFIX=/usr/local (or tools/install.sh PREFIX)" >&2
  exit 2
fi
prefix=$(realpath -m "$1")
cd "$(dirname "$0")/.."
tools/build.sh release trireme_installed
cmake --install build/release --prefix "$prefix" >build/release/install.log
libtorch=$(sed -n 's/^ *set(TRIREME_TORCH_DIR "\(\/.*\)").*/\1/p' build/release/package/TriremeConfig.cmake)
echo "installed into $prefix; it uses the libtorch in $libtorch"
echo "a project finds it with: cmake -DCMAKE_PREFIX_PATH=$prefix"
