#!/usr/bin/env bash
# Remote calls between two processes of this host beside torch.distributed.rpc over TensorPipe, by shared memory and by
# sockets; the systems alternate pass by pass. Prints tables of medians, spreads and ratios of the pairs.
#   [PEER_PYTHON=python with torch] [PASSES=5] bench/rpc_calls.sh [--smoke]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_rpc_calls
needs_peer_python

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for _ in $(seq "${PASSES:-5}"); do
  for way in shm tcp; do
    "$build/bin/bench_rpc_calls" --passes 1 --way "$way" "$@" >>"$lines"
    "$PEER_PYTHON" "$here/peers/rpc_calls.py" --passes 1 --way "$way" "$@" >>"$lines"
  done
done
cat "$lines"
"$PEER_PYTHON" "$here/peers/rpc_calls.py" --summary "$lines"
