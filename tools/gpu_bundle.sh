#!/usr/bin/env bash
# Builds what a machine with a GPU needs to try the project, into one folder: the programs, the CUDA object, the tests
# that need a GPU, the table of modes, the benchmark of a training step and its peer, and the script gpu_check that runs
# them. That machine needs a Python with torch of the version in tools/versions.sh (TORCH_MINIMUM_VERSION), and nothing
# else: no package, compiler or network. This machine needs the CUDA toolkit and nccl.h, but no GPU.
#
#   tools/gpu_bundle.sh [FOLDER]          (default: build/gpu-bundle/trireme-gpu)
#
# There: copy the folder, and run FOLDER/gpu_check (FOLDER/gpu_check --help). TRIREME_BUILD_DIR=DIR takes the programs of
# that build as they are, whatever its libtorch: for trying the script out without a GPU.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. tools/versions.sh
most_mib=60
build=${TRIREME_BUILD_DIR:-build/gpu-bundle}
folder=${1:-build/gpu-bundle/trireme-gpu}

if [ -z "${TRIREME_BUILD_DIR:-}" ]; then
  tools/setup.sh build test torch-minimum
  export TRIREME_TORCH_DIR=$PWD/.deps/torch-$TORCH_MINIMUM_VERSION/torch
  cmake --preset release -B "$build" >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  missing=$(sed -n 's/^-- CUDA object: not built: //p' "$build.log")
  [ -z "$missing" ] || { echo "gpu_bundle: the CUDA object cannot be built here: $missing" >&2; exit 2; }
  cmake --build "$build" --target gpu_bundle_programs
fi
rm -rf "$folder"
mkdir -p "$folder/checkout/examples" "$folder/peers"
cmake -DFOLDER="$(cd "$folder" && pwd)" -P "$build/package/TriremeGpuBundle.cmake"
cp tools/gpu_check.py "$folder/gpu_check"
cp examples/*.toml "$folder/checkout/examples"
cp LICENSE "$folder/checkout"  # the text that a character model learns in the table of modes
cp LICENSE "$folder"
cp bench/peers/{training_step,models,answer_help}.py "$folder/peers"
git rev-parse HEAD >"$folder/commit"
mib=$(du -sm "$folder" | cut -f1)
[ "$mib" -le "$most_mib" ] || { echo "gpu_bundle: $folder has $mib MiB, and at most $most_mib are wanted" >&2; exit 1; }
echo "gpu_bundle: $folder, $mib MiB; on a machine with a GPU run gpu_check there"
