#!/usr/bin/env bash
# What offload.optimizer = "files" and offload.activations = "files" cost and save: seconds per step and peak memory of
# whole runs of a gpt, in memory and in files, which alternate pass by pass. Prints the medians of both, with their
# spread over the passes, and the ratios of the medians and of the fastest passes. Memory is what the ledger counts at
# its peak, and the part of what may live elsewhere.
#   [PASSES=5] [STEPS=12] [FOLDER=/a/disk] bench/offload_step.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
passes=${PASSES:-5}
steps=${STEPS:-12}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
folder=${FOLDER:-$runs/scratch}

# Milliseconds of the median step of a run, its first two left out.
median_ms() {
  grep '"event":"step"' "$1" | grep -o '"step_s":[0-9.e-]*' | cut -d: -f2 | tail -n +3 | sort -g |
    awk '{v[NR] = $1} END {print 1000 * v[int((NR + 1) / 2)]}'
}

# memory_mib SUMMARY KIND: MiB of all that the summary calls memory_peak_..., and of that kind alone.
memory_mib() {
  grep -o '"memory_peak_[a-z]*_bytes": *[0-9]*' "$1" | tr -d '" ' |
    awk -F: -v kind="$2" '{all += $2} $1 ~ kind {own = $2} END {printf "%.0f %.0f\n", all / 1048576, own / 1048576}'
}

measure() { # WHAT NAME SETTINGS...
  local what=$1 name=$2 place
  shift 2
  for _ in $(seq "$passes"); do
    for place in none files; do
      rm -rf "${runs:?}/run"
      "$build/bin/trireme" train "$here/../examples/gpt_char.toml" --set "data.path=$here/../LICENSE" \
        --set data.block=64 --set model.layers=8 --set model.width=512 --set model.heads=8 \
        --set optimizer.name=adamw --set train.epochs=1000 --set "train.max_steps=$steps" \
        --set eval.every_steps=1000000 --set lr.schedule=constant --set lr.warmup_steps=0 \
        --set checkpoint.every_steps=0 --set "run.folder=$runs" --set run.name=run --set run.log_every_steps=1 \
        --set "offload.folder=$folder" --set "offload.$what=$place" "$@" >"$runs/out" 2>&1 ||
        { cat "$runs/out" >&2; exit 1; }
      echo "$place $(median_ms "$runs/run/metrics.jsonl") $(memory_mib "$runs/run/summary.json" "$what")"
    done
  done | sort -k1,1 -k2,2g | awk -v name="$name" '
    {v[$1, ++n[$1]] = $2; all[$1] = $3; own[$1] = $4}
    function middle(kind) { return v[kind, int((n[kind] + 1) / 2)] }
    function told(kind) { return sprintf("%.0f (%.0f to %.0f)", middle(kind), v[kind, 1], v[kind, n[kind]]) }
    END {printf "| %s | %s | %s | %.2f | %.2f | %d, %d | %d, %d |\n", name, told("none"), told("files"),
      middle("files") / middle("none"), v["files", 1] / v["none", 1], all["none"], own["none"], all["files"], own["files"]}'
}

echo "| run | ms per step in memory | in files | ratio | of the fastest | MiB at the peak, of what may live elsewhere: in memory | in files |"
echo "| --- | --- | --- | --- | --- | --- | --- |"
measure optimizer "state, batch 4" --set train.global_batch=4
measure optimizer "state, batch 32" --set train.global_batch=32
measure optimizer "state, batch 4, parts of 64 MiB" --set train.global_batch=4 --set offload.part_mib=64
measure activations "activations, batch 32" --set train.global_batch=32
measure activations "activations, batch 32, all layers recomputed" --set train.global_batch=32 \
  --set "train.recompute_layers=['*']"
