#!/usr/bin/env bash
# A pipeline's step over two ranks of one thread beside torch.distributed.pipelining; the systems alternate pass by
# pass. Prints a table of medians, spreads and ratios of the pairs.
#   [PEER_PYTHON=python with torch] [PASSES=5] bench/pipeline_step.sh [MODEL:SCHEDULE...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_pipeline_step trireme
needs_peer_python
work=("$@")
[ ${#work[@]} -gt 0 ] || work=({mlp,gpt,resnet50}:{gpipe,1f1b,interleaved-1f1b})

# The measurement counts once it is printed: PyTorch's gloo now and then aborts while it is torn down.
launch() (set +o pipefail; "$build/bin/trireme" launch -n 2 -- "$@" | grep -o '{.*}')
steps_of() { case $1 in mlp) echo 40 ;; gpt) echo 30 ;; resnet50) echo 6 ;; esac; }

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for _ in $(seq "${PASSES:-5}"); do
  for entry in "${work[@]}"; do
    model=${entry%%:*}
    arguments=(--model "$model" --schedule "${entry#*:}" --steps "$(steps_of "$model")")
    launch "$build/bin/bench_pipeline_step" "${arguments[@]}" >>"$lines"
    launch "$PEER_PYTHON" "$here/peers/pipeline_step.py" "${arguments[@]}" >>"$lines"
    "$build/bin/bench_pipeline_step" "${arguments[@]}" >>"$lines"
  done
done
cat "$lines"
"$PEER_PYTHON" "$here/peers/pipeline_step.py" --summary "$lines"
