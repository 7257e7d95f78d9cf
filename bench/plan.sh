#!/usr/bin/env bash
# Is the plan that `trireme plan` chooses the fastest one? For each case (model, ranks, hosts, Gbit/s of each host's
# cable): bench_plan_choice searches for plans, trains with PLANS of them, and with the fastest ones again in turns.
# Hosts are network namespaces, whose cables are held to the rate. A row for each case. Several hosts need root and
# iproute2.
#   [PLANS=40] [TRIAL_S=0.4] [ROUNDS=3] [OUT=FOLDER] bench/plan.sh [CASE...]     CASE: MODEL:RANKS:HOSTS:GBIT, such as gpt:4:2:1
# OUT: keeps the JSON of each case there.
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme bench_plan_choice
cases=("$@")
[ $# -gt 0 ] || cases=(mlp:2:2:1 mlp:4:1:0 mlp:8:2:10 wide:2:1:0 wide:4:2:1 wide:8:4:1 cnn:2:2:0.1 cnn:4:2:1 cnn:8:1:0
  resnet18:2:1:0 resnet18:4:2:1 resnet18:8:4:10 gpt:2:2:10 gpt:4:4:1 gpt:8:2:1)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# MODEL: the file and its settings, a word each
config_of() {
  local file settings
  case $1 in
    mlp) file=fashion_mnist_mlp settings="data.name=synthetic train.global_batch=256" ;;
    wide) file=fashion_mnist_mlp settings="data.name=synthetic model.hidden=[1024,1024,1024] train.global_batch=64" ;;
    cnn) file=fashion_mnist settings="data.name=synthetic train.global_batch=64" ;;
    resnet18) file=resnet18 settings="data.name=synthetic train.global_batch=16" ;;
    gpt) file=gpt_char settings="data.path=$here/../LICENSE train.global_batch=16" ;;
    *) echo "bench/plan.sh: unknown model '$1'; expected mlp, wide, cnn, resnet18 or gpt" >&2; exit 2 ;;
  esac
  echo "$here/../examples/$file.toml"
  for each in $settings comm.torch_threads=1 lr.schedule=constant lr.warmup_steps=0 run.folder="$results"; do
    printf '%s\n' --set "$each"
  done
}

# MODEL RANKS HOSTS GBIT: the JSON of rank 0
one() {
  local words
  mapfile -t words < <(config_of "$1")
  words=("$build/bin/bench_plan_choice" "${words[@]}" --plans "${PLANS:-40}" --trial-s "${TRIAL_S:-0.4}" --rounds "${ROUNDS:-3}")
  if [ "$3" -eq 1 ]; then
    "$build/bin/trireme" launch -n "$2" --no-prefix -- "${words[@]}" 2>"$results/err" || { cat "$results/err" >&2; return 1; }
    return
  fi
  (
    HOSTS=$3
    source "$here/hosts.sh"
    shape "$(awk -v gbit="$4" 'BEGIN {print 1000 * gbit "mbit"}')"
    pids=()
    for each in $(each_host); do
      TRIREME_HOST_ID=host-$each GLOO_SOCKET_IFNAME=cable ip netns exec "$(host "$each")" "$build/bin/trireme" launch \
        -n $(($2 / $3)) --no-prefix --nnodes "$3" --node-rank "$each" --master-addr 198.51.100.1 --master-port 29555 \
        --secret-file "$work/secret" -- "${words[@]}" >"$work/out$each" 2>"$work/err$each" &
      pids+=($!)
    done
    for each in "${pids[@]}"; do wait "$each" || { cat "$work"/err? >&2; exit 1; }; done
    cat "$work/out0"
  )
}

echo "| model | ranks | hosts, Gbit/s | plans found, tried | search, s | chosen | estimated, ms | measured, ms | fastest, ms | chosen / fastest | data parallelism / chosen | order | memory: measured / promised |"
echo "| --- | ---: | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
for case in "${cases[@]}"; do
  IFS=: read -r model ranks hosts gbit <<<"$case"
  json=$results/$model-$ranks-$hosts-$gbit.json
  one "$model" "$ranks" "$hosts" "$gbit" >"$json"
  [ -z "${OUT:-}" ] || { mkdir -p "$OUT" && cp "$json" "$OUT"; }
  python3 - "$json" "$model" "$hosts" "$gbit" <<'PY'
import json, sys
file, model, hosts, gbit = sys.argv[1:]
found = next(json.loads(line) for line in open(file) if line.startswith("{"))
chosen, fastest, plain = found["chosen"], found["fastest"], found.get("data_parallelism")
memory = max(plan["measured_bytes"] / plan["promised_bytes"] for plan in found["plans"])
base = f"{plain['measured_s'] / chosen['measured_s']:.2f}" if plain else "-"
where = "1" if hosts == "1" else f"{hosts}, {gbit}"
print(f"| {model} | {found['ranks']} | {where} | {found['found']}, {found['tried']} | {found['search_s']:.2f} | {chosen['plan']} | "
      f"{1e3 * chosen['estimated_s']:.1f} | {1e3 * chosen['measured_s']:.1f} | {1e3 * fastest['measured_s']:.1f} | "
      f"{chosen['measured_s'] / fastest['measured_s']:.2f} | {base} | {found['order']:.2f} | "
      f"{chosen['measured_bytes'] / chosen['promised_bytes']:.2f}, at most {memory:.2f} |", flush=True)
PY
done
