#!/usr/bin/env bash
# A data-parallel training step whose replicas share out what they hold (docs/zero.md), beside PyTorch's ways over
# gloo: DistributedDataParallel (0), ZeroRedundancyOptimizer (1), FSDP2 that keeps gathered parameters (2) and that
# gives them back (3). Two ranks of one thread each; the ways alternate pass by pass. Prints milliseconds per step,
# and by how many MiB the largest memory of rank 0 has grown since its model was there.
#   [PEER_PYTHON=python with torch] [PASSES=5] bench/zero_step.sh [MODEL...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_training_step trireme
needs_peer_python
passes=${PASSES:-5}
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(wide mlp)

launch() (set +o pipefail; "$build/bin/trireme" launch -n 2 -- "$@" 2>/dev/null | grep -o '{.*}')
steps_of() { case $1 in mlp) echo 200 ;; cnn) echo 60 ;; wide | gpt) echo 20 ;; *) echo 6 ;; esac; }

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for model in "${models[@]}"; do
  for _ in $(seq "$passes"); do
    for zero in 0 1 2 3; do
      work=(--model "$model" --steps "$(steps_of "$model")" --zero "$zero")
      launch "$build/bin/bench_training_step" "${work[@]}" >>"$lines"
      launch "$PEER_PYTHON" "$here/peers/training_step.py" "${work[@]}" >>"$lines"
    done
  done
done
cat "$lines"
"$PEER_PYTHON" "$here/peers/training_step.py" --shards "$lines"
