#!/usr/bin/env bash
# A training step of ResNet-50 on one thread (64x64, batch 8, fused SGD) beside PyTorch in every way that it has:
# eager and compiled, contiguous and channels_last. The ways take turns; prints milliseconds per sample.
#   [PEER_PYTHON=python with torch] [PASSES=5] bench/resnet50_step.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_training_step
needs_peer_python
work=(--model resnet50 --steps 8)

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for _ in $(seq "${PASSES:-5}"); do
  for convolution in aten auto; do
    "$build/bin/bench_training_step" "${work[@]}" --convolution "$convolution" >>"$lines"
  done
  for way in "" --channels-last --compile "--compile --channels-last"; do
    # shellcheck disable=SC2086 # a way is several options
    "$PEER_PYTHON" "$here/peers/training_step.py" "${work[@]}" $way >>"$lines"
  done
done
cat "$lines"
"$PEER_PYTHON" "$here/peers/training_step.py" --ways "$lines"
