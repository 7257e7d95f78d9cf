#!/usr/bin/env bash
# A GPT of 1.5 billion parameters (weights and gradients: 12 GB) over four stages, none of which may have more than
# 5 GB: started, trained for a step, saved, resumed. Then the checkpoint of a smaller one, written by four ranks, read
# by one to four with other cuts. Peaks are those of the largest rank, its shared pages included. The limit is one of
# the system (ulimit -d: memory that a process has for itself); a rank beyond it ends with an error.
#   [LAYERS=49] [SMALL_LAYERS=12] [LIMIT_MB=5000] bench/model_over_stages.sh [FOLDER on a disk with 30 GB]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
limit_mb=${LIMIT_MB:-5000}
work=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/model_over_stages.XXXXXX")
trap 'rm -rf "$work"' EXIT

head -c 6000 /dev/urandom | base64 >"$work/text"
cat >"$work/run.toml" <<TOML
[run]
name = "stages"
folder = "$work"
log_every_steps = 1
[data]
name = "text"
path = "$work/text"
block = 64
[model]
name = "gpt"
width = 1600
heads = 25
[train]
global_batch = 4
[optimizer]
name = "sgd"
momentum = 0.0
lr = 0.01
[checkpoint]
keep = 1
[comm]
timeout_s = 600
TOML

# field NAME: of the run's summary
field() { grep -o "\"$1\": *[0-9.]*" "$work/stages/summary.json" | head -1 | grep -o '[0-9.]*$'; }

# row WHAT RANKS STEPS SETTING...: one line of the table
row() {
  local what=$1 ranks=$2 steps=$3 began=$SECONDS settings=()
  shift 3
  for setting in "$@" "train.max_steps=$steps"; do settings+=(--set "$setting"); done
  (ulimit -d $((limit_mb * 1000000 / 1024))
    "$build/bin/trireme" train "$work/run.toml" -n "$ranks" "${start[@]}" "${settings[@]}") >"$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; exit 1; }
  echo "| $what | $ranks | $(($(field peak_rss_bytes) / 1000000)) | $((SECONDS - began)) |"
}

echo "| | ranks | MB of the largest | s |"
echo "| --- | --- | --- | --- |"
four=("parallel.pipeline=4" "parallel.schedule=1f1b" "parallel.microbatches=4" "parallel.partition=parameters")
layers=${LAYERS:-49}
start=()
row "$layers layers, $((layers * 3073 / 100)) million parameters: a step, an evaluation, and a checkpoint" 4 1 "model.layers=$layers" "${four[@]}"
start=(--resume)
row "the same, resumed for another" 4 2 "model.layers=$layers" "${four[@]}"
rm -rf "$work/stages"

layers=${SMALL_LAYERS:-12}
start=()
row "$layers layers, $((layers * 3073 / 100)) million parameters: a step, an evaluation, and a checkpoint" 4 1 "model.layers=$layers" "${four[@]}"
mv "$work/stages" "$work/written"
for ranks in 1 2 3 4; do
  cp -r "$work/written" "$work/stages"
  start=(--resume)
  row "read by $ranks, for another step" "$ranks" 2 "model.layers=$layers" "parallel.pipeline=$ranks" \
    "parallel.schedule=1f1b" "parallel.microbatches=4" "parallel.partition=uniform"
  rm -rf "$work/stages"
done
