#!/usr/bin/env bash
# bundle.sh BUILD CONSUMER CMAKE GENERATOR TORCH
# A bundle runs from another folder than it was installed in, with nothing of this machine's but libc, and a
# separate project builds against it. Without its libtorch it says what is missing and what to do.
. "$(dirname "$0")/steps.sh"

install_bundle "$work/prefix"
install_bundle "$work/prefix"  # a second time over the first
check_files "$work/prefix"
moved=$work/elsewhere/moved
mkdir "$work/elsewhere"
mv "$work/prefix" "$moved"

for program in "$moved"/bin/* "$moved"/libexec/trireme/*; do
  found=$(env -i LD_TRACE_LOADED_OBJECTS=1 "$program" | grep '=>' | grep -vF "$moved/" \
    | grep -vE '^\s*(lib(c|m|dl|rt|pthread|util)\.so|ld-linux)' || true)
  [ -z "$found" ] || fail "$program loads from outside of the bundle:"$'\n'"$found"
done
check_run_paths bundle "$moved"
# The libtorch of the build out of reach, where this user may mount.
hide=(env -i)
if unshare --map-root-user --mount mount -t tmpfs none "$torch" 2>/dev/null; then
  hide=(unshare --map-root-user --mount env -i sh -c 'mount -t tmpfs none "$0" && exec "$@"' "$torch")
else
  echo "the libtorch of the build could not be hidden: only the loader was asked"
fi
use_programs "$moved" "${hide[@]}"
build_project "$moved"
program=$work/project/build/my_program
# Read to its end: the loader would fail on a pipe that the first match closes.
loaded=$(env -i LD_TRACE_LOADED_OBJECTS=1 "$program")
grep -qF "libtorch_cpu.so => $moved/lib/trireme/torch/lib/" <<<"$loaded" \
  || fail "the separate project does not use the libtorch of the bundle"
use_project "$moved"

mv "$moved/lib/trireme/torch" "$moved/lib/trireme/parked"
refuse "not found: libtorch_cpu.so" "$moved/bin/trireme" train runs/quick/config.toml
refuse "ln -s FOLDER $moved/lib/trireme/torch" "$moved/bin/trireme" train runs/quick/config.toml
ln -s "$moved/lib/trireme/parked" "$moved/lib/trireme/torch"
expect "step-00000050: ok" "$moved/bin/trireme" checkpoint verify runs/quick
