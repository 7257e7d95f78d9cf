#!/usr/bin/env bash
# How near is what `trireme memory` says before a run to what the run takes? A gpt in several modes, two ranks, and a
# cnn, a ResNet-18 and an mlp in some: tensors and process of the rank that takes most, told and taken. Of a process
# the kernel is asked 200 times a second: anonymous memory of the rank with most, and its share of shared memory.
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
mlp="examples/quick.toml model.hidden=[1024,1024,1024,1024,1024,1024,1024,1024] optimizer.name=adamw train.accumulation=1 train.global_batch=32"
files="parallel.zero=3 offload.optimizer=files offload.parameters=files offload.part_mib=2"
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
  "ResNet-18, bf16, zero 2|$resnet train.precision=bf16 parallel.zero=2" "ResNet-18, stages, 1f1b|$resnet $stages"
  "mlp of 16 units|$mlp model.hidden=[16]" "mlp of 16 units, gloo|$mlp model.hidden=[16] comm.backend=gloo"
  "mlp, replicas saved every step|$mlp checkpoint.every_steps=1")
for backend in shm gloo; do
  for zero in 0 1 2 3; do modes+=("mlp, $backend, zero $zero|$mlp comm.backend=$backend parallel.zero=$zero"); done
  modes+=("mlp, $backend, zero 3, files|$mlp comm.backend=$backend $files")
done

one() { # FILE SETTINGS...: tensors told and taken, process told and taken, in MiB
  local file=$1 settings=() setting
  shift
  for setting in train.epochs=1000 train.max_steps=10 lr.schedule=constant lr.warmup_steps=0 comm.torch_threads=1 checkpoint.every_steps=0 "$@"; do
    settings+=(--set "$setting")
  done
  rm -rf "${runs:?}/run"
  "$build/bin/trireme" memory "$here/../$file" -n 2 "${settings[@]}" --json >"$runs/told.json" 2>"$runs/out" || { cat "$runs/out" >&2; exit 1; }
  python3 - "$runs" "$build/bin/trireme" train "$here/../$file" -n 2 "${settings[@]}" --set eval.every_steps=1000000 \
    --set "run.folder=$runs" --set run.name=run <<'P'
import json, subprocess, sys, time

runs, command, ranks = sys.argv[1], sys.argv[2:], 2
told = json.load(open(runs + "/told.json"))["modes"][0]

def lines(path):
    try:
        return open(path).read().split("\n")
    except OSError:
        return []

def taken(pid):  # of a rank: the launcher and what comes before it are smaller
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines(f"/proc/{pid}/status") if line.startswith("Rss")}
    return (kib.get("RssAnon", 0) + kib.get("RssShmem", 0) / ranks) / 1024

most = 0
with open(runs + "/out", "w") as out:
    run = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    while run.poll() is None:
        for pid in lines(f"/proc/{run.pid}/task/{run.pid}/children")[:1]:
            most = max([most, *map(taken, pid.split())])
        time.sleep(0.005)
if run.returncode:
    sys.exit(open(runs + "/out").read())
summary = json.load(open(runs + "/run/summary.json"))
tensors = sum(value for key, value in summary.items() if key.startswith("memory_peak_"))
print(told["peak_bytes"]["total"] / 2**20, tensors / 2**20, told["process_bytes"] / 2**20, most)
P
}

echo "| mode | tensors told, MiB | taken, MiB | told / taken | process told, MiB | taken, MiB | told / taken |"
echo "| --- | --- | --- | --- | --- | --- | --- |"
for mode in "${modes[@]}"; do
  name=${mode%%|*}
  [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
  # shellcheck disable=SC2086  # words of a mode are settings
  one ${mode#*|} | awk -v name="$name" '{printf "| %s | %.1f | %.1f | %.3f | %.0f | %.0f | %.2f |\n", name, $1, $2, $1 / $2, $3, $4, $3 / $4}'
done
