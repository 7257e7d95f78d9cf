#!/usr/bin/env bash
# Builds what is installed, and installs it: programs, headers, libraries, examples, completion for shells and
# the CMake package.
#
#   tools/install.sh PREFIX [--bundle]          (make install PREFIX=... [BUNDLE=1])
#
# Without --bundle the installed programs use the libtorch they were built with, where it lies: choose it with
# TRIREME_TORCH_DIR when the one in .deps/ may go away. With --bundle libtorch and every other library but libc
# are installed as well: the prefix can be moved, and PREFIX.tar.gz is made of it for other machines.
set -euo pipefail
. "$(dirname "$0")/help.sh"
if [ -z "${1:-}" ]; then
  echo "install: say where to: make install PREFIX=/usr/local (or tools/install.sh PREFIX)" >&2
  exit 2
fi
prefix=$(realpath -m "$1")
case ${2:-} in
  "") bundle= ;;
  --bundle) bundle=yes ;;
  *) echo "install: unknown option '$2'; known: --bundle" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
build=build/release
tools/build.sh release trireme_installed
cmake --install $build --prefix "$prefix" >$build/install.log
if [ -z "$bundle" ]; then
  libtorch=$(sed -n 's/^ *set(TRIREME_TORCH_DIR "\(\/.*\)").*/\1/p' $build/package/TriremeConfig.cmake | tail -n 1)
  echo "installed into $prefix; it uses the libtorch in $libtorch"
else
  cmake --install $build --prefix "$prefix" --component bundle >>$build/install.log
  # Only what was installed: the prefix may hold other things.
  name=trireme-$(cat VERSION)
  # grep ends every line, the last one of a manifest too.
  grep -h . $build/install_manifest.txt $build/install_manifest_bundle.txt \
    | while IFS= read -r file; do echo "${file#"$prefix"/}"; done \
    | tar -C "$prefix" --no-recursion --transform "s,^,$name/,S" --owner=0 --group=0 -czf "$prefix.tar.gz" -T -
  echo "installed into $prefix ($(du -sh "$prefix" | cut -f 1)) with all libraries: it can be moved"
  echo "for other machines: $prefix.tar.gz ($(du -h "$prefix.tar.gz" | cut -f 1)); unpack it anywhere, run $name/bin/trireme"
fi
echo "a project finds it with: cmake -DCMAKE_PREFIX_PATH=$prefix"
