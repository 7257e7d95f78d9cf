#!/usr/bin/env bash
# separate_project.sh BUILD CONSUMER CMAKE GENERATOR
# Installs BUILD, configures and builds CONSUMER against the installed package only, and runs it over two
# processes under our launcher and, where there is one, under mpirun.
set -euo pipefail
build=$1 consumer=$2 cmake=$3 generator=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log"
for file in bin/trireme bin/trireme-torch include/trireme/trireme.h; do
  [ -e "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done
internal=$(find "$prefix/include" -name internal)
[ -z "$internal" ] || { echo "internal headers are installed: $internal"; exit 1; }

cp -r "$consumer" "$work/project"
"$cmake" -S "$work/project" -B "$work/project/build" -G "$generator" -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/project/build"
program=$work/project/build/separate

# Both ranks have the right weights for both axes only if their gradients were averaged.
expect() {
  local found
  found=$(timeout 60 "$@" 2>&1) || { echo "failed: $*"; echo "$found"; exit 1; }
  grep -q 'separate: 2 ranks, weights 2.000 -3.000' <<<"$found" || { echo "unexpected output of: $*"; echo "$found"; exit 1; }
  echo "as expected: $*"
}
expect "$prefix/bin/trireme" launch -n 2 -- "$program"
if command -v mpirun >/dev/null; then
  options=(--oversubscribe)
  [ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)
  expect mpirun "${options[@]}" -n 2 "$program"
else
  echo "no mpirun here: only our launcher was tried"
fi
