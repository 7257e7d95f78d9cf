#!/usr/bin/env bash
# An optimizer's step beside PyTorch's, one thread; the systems alternate pass by pass. Prints a table of medians,
# spreads and ratios of the pairs.
#   [PEER_PYTHON=python with torch] [PASSES=5] bench/optimizer_step.sh [OPTIMIZER...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_optimizer_step
needs_peer_python
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(sgd adam adamw adagrad rmsprop)

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for _ in $(seq "${PASSES:-5}"); do
  for name in "${names[@]}"; do
    "$build/bin/bench_optimizer_step" --optimizer "$name" >>"$lines"
    "$PEER_PYTHON" "$here/peers/optimizer_step.py" --optimizer "$name" >>"$lines"
  done
done
cat "$lines"
"$PEER_PYTHON" "$here/peers/optimizer_step.py" --summary "$lines"
