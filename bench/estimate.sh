#!/usr/bin/env bash
# How near is an estimate to a step? A gpt on two ranks of one thread each. Costs are measured once with replicas; each
# mode is estimated from them and then run. Only parts of layers, of sequences and another backend measure their own.
# A row: the median step of a run without its first two, the estimate, their ratio; of several passes the middle ratio,
# with the smallest and the largest.
#   [STEPS=24] [PASSES=3] bench/estimate.sh [NAME...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
steps=${STEPS:-24}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

stages="parallel.pipeline=2 parallel.microbatches=8"
# name | settings | settings of the measurement beside those of replicas
modes=("replicas||" "zero 1|parallel.zero=1|" "zero 2|parallel.zero=2|" "zero 3|parallel.zero=3|"
  "zero 3 over gloo|parallel.zero=3 comm.backend=gloo|comm.backend=gloo" "layers recomputed|train.recompute_layers=['*']|"
  "stages, 1f1b|$stages|" "stages, gpipe|$stages parallel.schedule=gpipe|"
  "stages, gpipe, recomputed|$stages parallel.schedule=gpipe parallel.recompute=true|"
  "stages, zb-h1|$stages parallel.schedule=zb-h1|" "tensor|parallel.tensor=2|parallel.tensor=2"
  "context|parallel.context=2|parallel.context=2")

common=(examples/gpt_char.toml -n 2)
for setting in "data.path=$here/../LICENSE" data.block=64 model.layers=8 model.width=128 model.heads=4 train.global_batch=32 \
  train.epochs=1000 lr.schedule=constant lr.warmup_steps=0 comm.torch_threads=1; do
  common+=(--set "$setting")
done
common[0]="$here/../${common[0]}"

trireme() { "$build/bin/trireme" "$@" 2>"$runs/err" || { cat "$runs/err" >&2; exit 1; }; }
value() { sed -n "s/^ *\"$1\": \([0-9.e-]*\),*\$/\1/p" "$2" | head -1; }

one() { # MEASURED_WITH SETTINGS: "measured estimated", in ms
  local with=() settings=() setting
  for setting in $1; do with+=(--set "$setting"); done
  for setting in $2; do settings+=(--set "$setting"); done
  rm -rf "${runs:?}/run" "$runs/costs.json"
  trireme estimate "${common[@]}" ${with[@]+"${with[@]}"} --save "$runs/costs.json" >/dev/null
  trireme estimate "${common[@]}" ${settings[@]+"${settings[@]}"} --measurements "$runs/costs.json" --json >"$runs/told.json"
  local told
  told=$(value step_s "$runs/told.json")
  trireme train "${common[@]}" ${settings[@]+"${settings[@]}"} --set "train.max_steps=$steps" --set eval.every_steps=1000000 \
    --set checkpoint.every_steps=0 --set "run.folder=$runs" --set run.name=run --timeline timeline.html \
    --trace-steps "3:$steps" >"$runs/out"
  awk -v measured="$(sed -n 's/.*the median took \([0-9.]*\) ms.*/\1/p' "$runs/out" "$runs/err")" -v told="$told" 'BEGIN {print measured, 1000 * told}'
}

echo "| mode | measured, ms | estimated, ms | estimated / measured |"
echo "| --- | --- | --- | --- |"
for mode in "${modes[@]}"; do
  IFS='|' read -r name settings with <<<"$mode"
  [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
  for _ in $(seq "${PASSES:-3}"); do one "$with" "$settings"; done | awk '{print $1, $2, $2 / $1}' | sort -k3,3g |
    awk -v name="$name" '{m[NR] = $1; s[NR] = $2; r[NR] = $3} END {k = int((NR + 1) / 2)
      printf "| %s | %.1f | %.1f | %.3f (%.3f to %.3f) |\n", name, m[k], s[k], r[k], r[1], r[NR]}'
done
