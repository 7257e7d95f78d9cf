#!/usr/bin/env bash
# How near is the simulator to a step? Runs of a gpt in several modes, two ranks of one thread each: the median step as
# it was, and the step's program simulated with the mean times that its own actions took (--timeline). A ratio below 1
# is time that no action explains: waiting for the other rank beyond what the program has it wait.
#   [STEPS=40] [PASSES=3] bench/simulated_step.sh [NAME...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
steps=${STEPS:-40}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

modes=("replicas|" "zero 1|parallel.zero=1" "zero 2|parallel.zero=2" "zero 3|parallel.zero=3"
  "zero 3 over gloo|parallel.zero=3 comm.backend=gloo" "layers recomputed|train.recompute_layers=['*']"
  "stages, 1f1b|parallel.pipeline=2 parallel.microbatches=8" "stages, gpipe|parallel.pipeline=2 parallel.microbatches=8 parallel.schedule=gpipe"
  "stages, gpipe, recomputed|parallel.pipeline=2 parallel.microbatches=8 parallel.schedule=gpipe parallel.recompute=true"
  "stages, zb-h1|parallel.pipeline=2 parallel.microbatches=8 parallel.schedule=zb-h1" "tensor|parallel.tensor=2"
  "context|parallel.context=2")

one() { # SETTINGS...: "measured simulated", in ms
  rm -rf "${runs:?}/run"
  "$build/bin/trireme" train "$here/../examples/gpt_char.toml" -n 2 --set "data.path=$here/../LICENSE" \
    --set data.block=64 --set model.layers=8 --set model.width=128 --set model.heads=4 --set train.global_batch=32 \
    --set train.epochs=1000 --set "train.max_steps=$steps" --set eval.every_steps=1000000 --set checkpoint.every_steps=0 \
    --set lr.schedule=constant --set lr.warmup_steps=0 \
    --set "run.folder=$runs" --set run.name=run --set comm.torch_threads=1 --timeline timeline.html \
    --trace-steps "3:$steps" "$@" >"$runs/out" 2>&1 || { cat "$runs/out" >&2; exit 1; }
  sed -n 's/.*the median took \([0-9.]*\) ms, and simulated with .* actions \([0-9.]*\) ms.*/\1 \2/p' "$runs/out"
}

echo "| mode | measured, ms | simulated, ms | simulated / measured |"
echo "| --- | --- | --- | --- |"
for mode in "${modes[@]}"; do
  name=${mode%%|*} settings=()
  [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
  for setting in ${mode#*|}; do settings+=(--set "$setting"); done
  for _ in $(seq "${PASSES:-3}"); do one ${settings[@]+"${settings[@]}"}; done | awk '{print $1, $2, $2 / $1}' | sort -k3,3g |
    awk -v name="$name" '{m[NR] = $1; s[NR] = $2; r[NR] = $3} END {k = int((NR + 1) / 2)
      printf "| %s | %.1f | %.1f | %.3f (%.3f to %.3f) |\n", name, m[k], s[k], r[k], r[1], r[NR]}'
done
