#!/usr/bin/env bash
# What 8 times the batch costs in accuracy, by the way the learning rate follows it: examples/fashion_mnist_mlp.toml
# with plain SGD at 64 samples per step, and at 512 with lr.scale_with_batch none, linear, sqrt and adascale, over
# several seeds. The same epochs for all; adascale-long may have twice as many, and ends when the schedule of the
# small batch is over. Prints a row of a table for each.
#   [SEEDS="1 2 3"] [RANKS=2] [EPOCHS=4] [ROWS="small none sqrt linear adascale adascale-long"] bench/large_batch.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${TRIREME_BUILD:-$here/../build/release}
read -ra seeds <<<"${SEEDS:-1 2 3}"
read -ra rows <<<"${ROWS:-small none sqrt linear adascale adascale-long}"
epochs=${EPOCHS:-4} small=64 large=512
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

field() { grep -o "\"$2\": *[-0-9.e+]*" "$1" | head -1 | sed 's/.*: *//'; }
small_steps=$(((60000 + small - 1) / small * epochs))

echo "| run | samples per step | steps | test accuracy | mean | largest useful batch |"
echo "| --- | --- | --- | --- | --- | --- |"
for row in "${rows[@]}"; do
  settings=(--set train.global_batch=$large --set lr.scale_with_batch="$row" --set train.epochs="$epochs")
  case $row in
    small) settings=(--set train.global_batch=$small --set train.epochs="$epochs") ;;
    adascale-long)
      settings=(--set train.global_batch=$large --set lr.scale_with_batch=adascale
        --set train.epochs=$((2 * epochs)) --set lr.progress_steps="$small_steps")
      ;;
  esac
  accuracies=() steps=() useful=()
  for seed in "${seeds[@]}"; do
    "$build/bin/trireme" train "$here/../examples/fashion_mnist_mlp.toml" -n "${RANKS:-2}" --set run.folder="$runs" \
      --set run.name="$row-$seed" --set run.seed="$seed" --set optimizer.lr=0.05 --set optimizer.momentum=0 \
      --set train.accumulation=2 --set train.noise_scale_every_steps=1 --set lr.warmup_steps=0 \
      --set lr.reference_batch=$small "${settings[@]}" >"$runs/log" 2>&1 || { cat "$runs/log" >&2; exit 1; }
    summary=$runs/$row-$seed/summary.json
    accuracies+=("$(field "$summary" test_accuracy)") steps+=("$(field "$summary" steps)")
    useful+=("$(field "$summary" largest_useful_batch)")
  done
  printf '%s\n' "${accuracies[@]}" | awk -v row="$row" -v steps="${steps[*]}" -v useful="${useful[*]}" \
    -v batch="$([ "$row" = small ] && echo $small || echo $large)" '
    { all = all (NR > 1 ? ", " : "") sprintf("%.4f", $1); sum += $1 }
    END {
      n = split(useful, u, " "); for (i = 1; i <= n; ++i) batches = batches (i > 1 ? ", " : "") sprintf("%.0f", u[i])
      printf "| `%s` | %d | %s | %s | %.4f | %s |\n", row, batch, steps, all, sum / NR, batches
    }'
done
