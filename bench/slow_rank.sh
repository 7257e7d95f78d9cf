#!/usr/bin/env bash
# Two ranks, each on a core of its own, of which the second shares its core with a program that computes without end: samples
# per second with equal shares of a batch and with data.balance = "dynamic", and the same with both cores free. The ways
# take each other's places, pass by pass.
#   [CONFIG=examples/fashion_mnist.toml] [SETTINGS="train.epochs=2"] [PASSES=3] bench/slow_rank.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
config=${CONFIG:-$here/../examples/fashion_mnist.toml}
read -ra settings <<<"${SETTINGS:-train.epochs=2}"

work=$(mktemp -d)
busy=
trap '[ -z "$busy" ] || kill $busy 2>/dev/null || true; rm -rf "$work"' EXIT
port=23456
# one_run BALANCE -> samples per second
one_run() {
  local rank pids=() set=(--set "data.balance=$1" --set "run.folder=$work/runs" --set "run.name=$1")
  for each in "${settings[@]}"; do set+=(--set "$each"); done
  port=$((port + 1))
  for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port OMP_NUM_THREADS=1 \
      taskset -c "$rank" "$build/bin/trireme" train "$config" "${set[@]}" >"$work/$1.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1; do wait "${pids[$rank]}" || { cat "$work/$1.$rank" >&2; exit 1; }; done
  sed -n 's/^ *"samples_per_s": *\([0-9.]*\).*/\1/p' "$work/runs/$1/summary.json"
}

for cores in shared free; do
  if [ $cores = shared ]; then taskset -c 1 sh -c 'while :; do :; done' & busy=$!; fi
  for _ in $(seq "${PASSES:-3}"); do
    for balance in count dynamic; do one_run $balance >>"$work/$cores.$balance"; done
  done
  [ -z "$busy" ] || { kill $busy; wait $busy 2>/dev/null || true; busy=; }
done
echo "| the second rank's core | equal shares, samples/s | dynamic, samples/s | ratio of medians |"
echo "| --- | ---: | ---: | ---: |"
for cores in shared free; do
  paste <(sort -g "$work/$cores.count") <(sort -g "$work/$cores.dynamic") | awk -v cores="$cores" '
    { a[NR] = $1; b[NR] = $2 }
    END { m = int((NR + 1) / 2)
          printf "| %s | %.0f (%.0f to %.0f) | %.0f (%.0f to %.0f) | %.2f |\n", cores, a[m], a[1], a[NR], b[m], b[1], b[NR], b[m] / a[m] }'
done
