#!/usr/bin/env bash
# What run.exact costs: milliseconds per step of whole runs with it and without, which alternate pass by pass, at
# one thread per rank and eight micro-batches per step. Prints the medians of both, with their spread over the
# passes, and the ratio.
#   TEXT=file [PASSES=5] [STEPS=60] bench/exact_step.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
passes=${PASSES:-5}
steps=${STEPS:-60}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

gpt=("$here/../examples/gpt_char.toml" --set "data.path=${TEXT:?a text file, for the character model}"
  --set train.global_batch=16)
cnn=("$here/../examples/fashion_mnist.toml" --set data.name=synthetic --set train.global_batch=128)

# Milliseconds of the median step of a run, its first ten left out.
median_ms() {
  grep '"event":"step"' "$1" | grep -o '"step_s":[0-9.e-]*' | cut -d: -f2 | tail -n +11 | sort -g |
    awk '{v[NR] = $1} END {print 1000 * v[int((NR + 1) / 2)]}'
}

measure() { # NAME RANKS MODEL-ARRAY SETTINGS...
  local name=$1 ranks=$2 exact
  local -n model=$3
  shift 3
  for _ in $(seq "$passes"); do
    for exact in false true; do
      rm -rf "${runs:?}/run"
      "$build/bin/trireme" train "${model[@]}" -n "$ranks" --set comm.torch_threads=1 --set "run.folder=$runs" \
        --set run.name=run --set run.log_every_steps=1 --set train.max_steps="$steps" --set eval.every_steps=1000000 \
        --set lr.schedule=constant --set lr.warmup_steps=0 --set checkpoint.every_steps=0 \
        --set run.exact=$exact "$@" >/dev/null 2>&1
      echo "$exact $(median_ms "$runs/run/metrics.jsonl")"
    done
  done | sort -k1,1 -k2,2g | awk -v name="$name" '
    {v[$1, ++n[$1]] = $2}
    function middle(kind) { return v[kind, int((n[kind] + 1) / 2)] }
    function told(kind) { return sprintf("%.2f (%.2f to %.2f)", middle(kind), v[kind, 1], v[kind, n[kind]]) }
    END {printf "| %s | %s | %s | %.2f |\n", name, told("false"), told("true"), middle("true") / middle("false")}'
}

echo "| run | ms per step | exact | ratio |"
echo "| --- | --- | --- | --- |"
measure "gpt, 1 rank, 8 micro-batches" 1 gpt --set train.accumulation=8
measure "gpt, 2 replicas" 2 gpt --set train.accumulation=4
measure "gpt, 2 replicas, zero = 3" 2 gpt --set train.accumulation=4 --set parallel.zero=3
measure "gpt, 2 stages" 2 gpt --set parallel.pipeline=2 --set parallel.microbatches=8
measure "cnn, 2 replicas" 2 cnn --set train.accumulation=4
