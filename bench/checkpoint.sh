#!/usr/bin/env bash
# Saving and loading of checkpoints beside torch.distributed.checkpoint and the bare disk, and what a save costs
# training; the systems alternate pass by pass. Prints tables of medians, spreads and ratios of the pairs.
#   [PEER_PYTHON=python with torch] [PASSES=5] bench/checkpoint.sh [FOLDER on the disk to measure]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_checkpoint
needs_peer_python
folder=${1:-bench-checkpoint}

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for _ in $(seq "${PASSES:-5}"); do
  "$build/bin/bench_checkpoint" --folder "$folder" --passes 1 --work io | grep '^{' >>"$lines"
  "$PEER_PYTHON" "$here/peers/checkpoint.py" --folder "$folder" --passes 1 >>"$lines"
done
"$build/bin/bench_checkpoint" --folder "$folder" --passes "${PASSES:-5}" --work hold-up | grep '^{' >>"$lines"
cat "$lines"
"$PEER_PYTHON" "$here/peers/checkpoint.py" --summary "$lines"
