#!/usr/bin/env bash
# The memory of a rank, by length of the sequences and by how many ranks they are cut over (docs/context.md): a GPT of
# 4 layers of width 128, one sequence per step, f32, adamw, one thread per rank. Prints MiB of activations, and of
# everything, at the peak of rank 0, as each run says at its end.
#   bench/sequence_memory.sh TEXT
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
text=${1:?a file of some 200,000 characters}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

number() { grep -o "\"$1\": *[0-9.]*" "$runs/run/summary.json" | grep -o '[0-9.]*$'; }
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f", bytes / 1048576 }'; }

echo "| tokens of a sequence | ranks | tokens of a rank | MiB of activations | MiB of all |"
echo "| --- | --- | --- | --- | --- |"
for plan in "1024 1" "2048 1" "2048 2" "4096 1" "4096 2" "4096 4"; do
  read -r tokens ranks <<<"$plan"
  rm -rf "$runs/run"
  "$build/bin/trireme" train "$here/../examples/gpt_char.toml" -n "$ranks" --set "data.path=$text" \
    --set "data.block=$tokens" --set "parallel.context=$ranks" --set train.global_batch=1 --set train.max_steps=4 \
    --set lr.warmup_steps=1 --set lr.decay_steps=1 --set comm.torch_threads=1 --set "run.folder=$runs" \
    --set run.name=run >"$runs/log" 2>&1 || { cat "$runs/log" >&2; exit 1; }
  activations=$(number memory_peak_activations_bytes)
  all=$activations
  for kind in weights gradients optimizer communication; do
    bytes=$(number "memory_peak_${kind}_bytes" || echo 0)
    all=$((all + ${bytes:-0}))
  done
  echo "| $tokens | $ranks | $((tokens / ranks)) | $(mib "$activations") | $(mib "$all") |"
done
