#!/usr/bin/env bash
# Builds and runs the tests that need a GPU: nccl with one rank, and the table of modes that the stand-in device runs
# without one, with all ranks on the GPUs that there are, through the host's memory. Needs no network.
#
#   [TRIREME_BUILD_DIR=build/gpu] tools/gpu_check.sh
#
# Torch comes from TRIREME_TORCH_DIR, TRIREME_PYTHON or .deps;
# TRIREME_DEPS_INCLUDE may name a folder of the header-only libraries where no packages are installed.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
build="${TRIREME_BUILD_DIR:-build/gpu}"
if [[ -n "${TRIREME_DEPS_INCLUDE:-}" ]]; then
  export CPLUS_INCLUDE_PATH="${TRIREME_DEPS_INCLUDE}${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}"
  export CMAKE_PREFIX_PATH="${TRIREME_DEPS_INCLUDE%/include}${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
fi
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTRIREME_WERROR=OFF
if ! grep -q '^TRIREME_CUDA_INCLUDE:PATH=/' "$build/CMakeCache.txt"; then
  echo "gpu_check: the CUDA object is not built here; see the 'CUDA object' line above" >&2
  exit 2
fi
cmake --build "$build" --target gpu trireme_cuda multiproc -j "$(nproc)"
ctest --test-dir "$build" -L gpu --output-on-failure
"$build/bin/multiproc" --gtest_filter='TableOnGpu/*'
# Other number formats, and GPUs found by themselves: runs that have to end well.
for precision in bf16 fp16; do
  "$build/bin/trireme" verify examples/quick.toml -n 2 --set train.device=cuda --set comm.backend=shm \
    --set train.precision="$precision" --set scaler.initial=1024
done
"$build/bin/trireme" train examples/quick.toml -n 1 --set run.folder="$build/runs" --set train.max_steps=20
