#!/usr/bin/env bash
# How near is what `trireme memory` says before a run to what the run takes? A gpt in several modes, two ranks, and a
# cnn and a ResNet-18 in some: the peak of the rank that takes most, told and taken.
#   bench/memory_forecast.sh [NAME...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
command -v python3 >/dev/null || { echo "memory_forecast: python3 is needed, to read JSON" >&2; exit 2; }
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

gpt="examples/gpt_char.toml data.path=$here/../LICENSE data.block=64 model.layers=8 model.width=128 model.heads=4 train.global_batch=32"
stages="parallel.pipeline=2 parallel.microbatches=8 parallel.partition=parameters"
resnet="examples/resnet18.toml train.global_batch=16"
modes=("gpt, replicas|$gpt" "gpt, zero 1|$gpt parallel.zero=1" "gpt, zero 2|$gpt parallel.zero=2" "gpt, zero 3|$gpt parallel.zero=3"
  "gpt, zero 3 over gloo|$gpt parallel.zero=3 comm.backend=gloo" "gpt, layers recomputed|$gpt train.recompute_layers=['*']"
  "gpt, bf16|$gpt train.precision=bf16" "gpt, 4 micro-batches added up|$gpt train.accumulation=4"
  "gpt, stages, 1f1b|$gpt $stages" "gpt, stages, gpipe|$gpt $stages parallel.schedule=gpipe"
  "gpt, stages, gpipe, recomputed|$gpt $stages parallel.schedule=gpipe parallel.recompute=true"
  "gpt, stages, zb-h1|$gpt $stages parallel.schedule=zb-h1" "gpt, stages, interleaved-1f1b|$gpt $stages parallel.schedule=interleaved-1f1b"
  "gpt, tensor|$gpt parallel.tensor=2" "gpt, context|$gpt parallel.context=2"
  "cnn, replicas|examples/fashion_mnist.toml" "cnn, zero 3|examples/fashion_mnist.toml parallel.zero=3"
  "cnn, stages, gpipe|examples/fashion_mnist.toml $stages parallel.schedule=gpipe"
  "ResNet-18, replicas|$resnet" "ResNet-18, zero 3 over gloo|$resnet parallel.zero=3 comm.backend=gloo"
  "ResNet-18, bf16, zero 2|$resnet train.precision=bf16 parallel.zero=2" "ResNet-18, stages, 1f1b|$resnet $stages")

one() { # FILE SETTINGS...: "told taken", in MiB
  local file=$1 settings=() setting
  shift
  for setting in "$@" train.epochs=1000 train.max_steps=5 lr.schedule=constant lr.warmup_steps=0 comm.torch_threads=1; do
    settings+=(--set "$setting")
  done
  rm -rf "${runs:?}/run"
  "$build/bin/trireme" memory "$here/../$file" -n 2 "${settings[@]}" --json >"$runs/told.json" 2>"$runs/out" || { cat "$runs/out" >&2; exit 1; }
  "$build/bin/trireme" train "$here/../$file" -n 2 "${settings[@]}" --set eval.every_steps=1000000 --set checkpoint.every_steps=0 \
    --set "run.folder=$runs" --set run.name=run >"$runs/out" 2>&1 || { cat "$runs/out" >&2; exit 1; }
  python3 - "$runs" <<'P'
import json, sys
told = json.load(open(sys.argv[1] + "/told.json"))["modes"][0]["peak_bytes"]["total"]
run = json.load(open(sys.argv[1] + "/run/summary.json"))
print(told / 2**20, sum(value for key, value in run.items() if key.startswith("memory_peak_")) / 2**20)
P
}

echo "| mode | told, MiB | taken, MiB | told / taken |"
echo "| --- | --- | --- | --- |"
for mode in "${modes[@]}"; do
  name=${mode%%|*}
  [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
  # shellcheck disable=SC2086  # words of a mode are settings
  one ${mode#*|} | awk -v name="$name" '{printf "| %s | %.1f | %.1f | %.3f |\n", name, $1, $2, $1 / $2}'
done
