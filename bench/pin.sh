#!/usr/bin/env bash
# Ranks that are pinned to cores and ranks that are not: samples per second of the mlp and the gpt of the examples, two ranks. The
# values of comm.pin take each other's places, pass by pass.
#   [RANKS=2] [PASSES=7] [PINS="none cores numa"] bench/pin.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
read -ra pins <<<"${PINS:-none cores numa}"
ranks=${RANKS:-2}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat "$here"/../docs/*.md >"$work/text"
# one_run MODEL PIN FILE SETTING... -> samples per second
one_run() {
  local name=$1.$2 pin=$2 file=$3 set=()
  shift 3
  for each in "$@" "comm.pin=$pin" "run.folder=$work/runs" "run.name=$name"; do set+=(--set "$each"); done
  "$build/bin/trireme" train "$here/../examples/$file" -n "$ranks" "${set[@]}" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  sed -n 's/^ *"samples_per_s": *\([0-9.]*\).*/\1/p' "$work/runs/$name/summary.json" >>"$work/$name"
}

for _ in $(seq "${PASSES:-7}"); do
  for pin in "${pins[@]}"; do
    one_run mlp "$pin" fashion_mnist_mlp.toml train.epochs=1 eval.every_steps=100000
    one_run gpt "$pin" gpt_char.toml "data.path=$work/text" train.max_steps=150 lr.schedule=constant lr.warmup_steps=0 eval.every_steps=100000
  done
done
echo "| model | comm.pin | samples/s, median | least | most |"
echo "| --- | --- | ---: | ---: | ---: |"
for model in mlp gpt; do
  for pin in "${pins[@]}"; do
    sort -g "$work/$model.$pin" | awk -v name="$model | $pin" '{ a[NR] = $1 } END { printf "| %s | %.0f | %.0f | %.0f |\n", name, a[int((NR + 1) / 2)], a[1], a[NR] }'
  done
done
