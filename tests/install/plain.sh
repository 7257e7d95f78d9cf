#!/usr/bin/env bash
# plain.sh BUILD CONSUMER CMAKE GENERATOR TORCH
# An installation that uses the libtorch of the build: programs and a separate project run, and go on doing so
# when the prefix has moved and when it replaces a bundle.
. "$(dirname "$0")/steps.sh"

prefix=$work/prefix
install_bundle "$prefix"
install_plain "$prefix"
[ ! -e "$prefix/lib/trireme/torch" ] || fail "the libtorch of a bundle was left where it is found first"
check_files "$prefix"
mv "$prefix" "$work/moved"
check_run_paths plain "$work/moved"
use_programs "$work/moved"
build_project "$work/moved" autoencoder two_towers
use_project "$work/moved"
use_with_torch "$work/moved"
use_examples
