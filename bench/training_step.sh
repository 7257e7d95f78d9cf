#!/usr/bin/env bash
# A data-parallel training step beside Python's DistributedDataParallel: two ranks of one thread each, the
# systems alternate pass by pass. Prints a table of medians, spreads and ratios of the pairs.
#   [PEER_PYTHON=python with torch] [PASSES=7] bench/training_step.sh [MODEL[:bf16]...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_training_step trireme
needs_peer_python
passes=${PASSES:-7}
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(mlp cnn wide resnet50 gpt resnet50:bf16 gpt:bf16)

# The measurement counts once it is printed: PyTorch's gloo now and then aborts while it is torn down.
launch() (set +o pipefail; "$build/bin/trireme" launch -n 2 -- "$@" | grep -o '{.*}')
steps_of() { case $1 in mlp) echo 200 ;; cnn) echo 60 ;; wide) echo 20 ;; resnet50) echo 6 ;; gpt) echo 20 ;; esac; }

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for entry in "${models[@]}"; do
  model=${entry%%:*}
  precision=fp32
  [ "$model" = "$entry" ] || precision=${entry#*:}
  work=(--model "$model" --precision "$precision" --steps "$(steps_of "$model")")
  for _ in $(seq "$passes"); do
    launch "$build/bin/bench_training_step" "${work[@]}" >>"$lines"
    launch "$PEER_PYTHON" "$here/peers/training_step.py" "${work[@]}" >>"$lines"
    # Two processes at the same time that do not talk to each other: what two ranks could reach here.
    "$build/bin/bench_training_step" "${work[@]}" >>"$lines" &
    "$build/bin/bench_training_step" "${work[@]}" >>"$lines"
    wait
  done
done
cat "$lines"
"$PEER_PYTHON" "$here/peers/training_step.py" --summary "$lines"
