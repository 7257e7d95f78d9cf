#!/usr/bin/env bash
# The largest GPT that two ranks of a host train in a budget of memory, for each way to share out what they hold,
# beside PyTorch's ways over gloo. Layers of 12.6 million parameters (width 1024), one sequence of 128 characters per
# rank and step, adamw. Memory is what all processes hold at their peak, pages that several map counted once, by rank:
# programs and libraries included. Where two small models lead, the number of layers is tried, and moved until one more
# layer would be too much.
#   [PEER_PYTHON=python with torch, for ways of PyTorch] [BUDGET_MIB=4096] bench/largest_model.sh [WAY...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_largest_model trireme
budget=${BUDGET_MIB:-4096}
ways=("$@")
[ ${#ways[@]} -gt 0 ] || ways=("parallel.zero=0" "parallel.zero=1" "parallel.zero=2" "parallel.zero=3"
  "parallel.zero=3 train.recompute_layers=['*']" "parallel.pipeline=2 parallel.microbatches=2" "parallel.tensor=2" "python ddp" "python zero1" "python fsdp2" "python fsdp2-checkpointed")
if [[ " ${ways[*]}" == *" python"* ]]; then needs_peer_python; else PEER_PYTHON=${PEER_PYTHON:-python3}; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/run.toml" <<'TOML'
[run]
folder = "/nonexistent"
[data]
name = "text"
block = 128
[model]
name = "gpt"
width = 1024
heads = 16
[train]
global_batch = 2
[optimizer]
name = "adamw"
lr = 0.0001
weight_decay = 0.0
[comm]
timeout_s = 300
TOML

# mib_per_rank WAY LAYERS: nothing where it does not run.
mib_per_rank() {
  local command
  case $1 in
    python*) command=("$PEER_PYTHON" "$here/peers/largest_model.py" "${1#python }" "$2") ;;
    *)
      command=("$build/bin/bench_largest_model" "$work/run.toml" --set "model.layers=$2")
      for setting in $1; do command+=(--set "$setting"); done
      ;;
  esac
  "$PEER_PYTHON" "$here/peers/host_memory.py" "$build/bin/trireme" launch -n 2 -- "${command[@]}" |
    "$PEER_PYTHON" -c 'import json, sys; r = json.load(sys.stdin); print(round(r["peak_mib"] / 2) if r["exit_code"] == 0 else 0)'
}

echo "| way | layers | million parameters | MiB per rank | with one layer more |"
echo "| --- | --- | --- | --- | --- |"
for way in "${ways[@]}"; do
  few=$(mib_per_rank "$way" 4)
  more=$(mib_per_rank "$way" 12)
  [ "$few" -gt 0 ] && [ "$more" -gt "$few" ] || { echo "$way does not run" >&2; exit 1; }
  layers=$((4 + (budget - few) * 8 / (more - few)))
  mib=$(mib_per_rank "$way" "$layers")
  while [ "$mib" -gt "$budget" ]; do
    above=$mib
    layers=$((layers - 1))
    mib=$(mib_per_rank "$way" "$layers")
  done
  while [ -z "${above:-}" ]; do
    next=$(mib_per_rank "$way" $((layers + 1)))
    if [ "$next" -gt "$budget" ]; then above=$next; else layers=$((layers + 1)) mib=$next; fi
  done
  echo "| $way | $layers | $((layers * 12589 / 1000)) | $mib | $above |"
  unset above
done
