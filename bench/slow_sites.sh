#!/usr/bin/env bash
# Two sites of two ranks over a slow link, beside the same ranks without one. Sites are network namespaces joined by a
# switch that delays every frame and holds the rate (tests/support/delayed_switch.h). For each way of training: accuracy,
# seconds of a step, MB that the cable of the first site has sent in all (headers, meeting and reports included), and what of it is
# left of data parallelism's. Needs root, iproute2 and /dev/net/tun.
#   [DELAY_MS=50] [MBIT=100] [CONFIG=examples/fashion_mnist.toml] [SETTINGS="train.max_steps=400"] [SEEDS="1"]
#   [WAYS="..."] bench/slow_sites.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme delayed_switch
config=${CONFIG:-$here/../examples/fashion_mnist.toml}
read -ra settings <<<"${SETTINGS:-}"
read -ra seeds <<<"${SEEDS:-1}"
# A way is its settings, or none for data parallelism, joined by commas.
sites=parallel.local_ranks=2
read -ra ways <<<"${WAYS:-together $sites,parallel.local_steps=64 \
  $sites,parallel.local_steps=128,parallel.local_delay=64 \
  $sites,parallel.local_steps=128,parallel.local_delay=64,parallel.outer_optimizer=nesterov}"

work=$(mktemp -d)
name=slow-sites-$$
"$build/bin/delayed_switch" "$name" 2 "${DELAY_MS:-50}" "${MBIT:-100}" >"$work/switch" 2>"$work/switch.err" &
switch=$!
trap 'kill $switch 2>/dev/null || true; wait $switch || true; rm -rf "$work"' EXIT
until grep -q ready "$work/switch"; do
  kill -0 $switch 2>/dev/null || { cat "$work/switch.err" >&2; exit 1; }
  sleep 0.1
done
echo "the secret of two sites" >"$work/secret" && chmod 600 "$work/secret"

sent() { ip netns exec "$name-0" cat /sys/class/net/cable/statistics/tx_bytes; }
# WAY SEED -> the settings of a run, a line each
settings_of() {
  printf '%s\n' --set "run.seed=$2" --set "run.folder=$work/runs" --set "checkpoint.every_steps=0"
  for each in ${settings[@]+"${settings[@]}"}; do printf '%s\n' --set "$each"; done
  [ "$1" = together ] || tr ',' '\n' <<<"$1" | sed 's/^/--set\n/'
}
port=23456
over_the_link() {
  port=$((port + 1))
  local pids=()
  for each in 0 1; do
    GLOO_SOCKET_IFNAME=cable TRIREME_HOST_ID=$name-$each ip netns exec "$name-$each" \
      "$build/bin/trireme" launch -n 2 --nnodes 2 --node-rank $each --master-addr 10.79.0.1 --master-port $port \
      --secret-file "$work/secret" -- "$build/bin/trireme-torch" train "$config" "$@" >"$work/out$each" 2>&1 &
    pids+=($!)
  done
  for each in "${pids[@]}"; do wait "$each" || { cat "$work"/out? >&2; exit 1; }; done
}
without() { "$build/bin/trireme" train "$config" -n 4 "$@" >"$work/out0" 2>&1 || { cat "$work/out0" >&2; exit 1; }; }
line() {
  python3 - "$work/runs" "$@" <<'PY'
import json, pathlib, statistics, sys
folder, link, way, seed, bytes_sent = sys.argv[1:]
run = max(pathlib.Path(folder).glob("*/summary.json"), key=lambda each: each.stat().st_mtime).parent
end = json.loads((run / "summary.json").read_text())
steps = [json.loads(each) for each in (run / "metrics.jsonl").read_text().splitlines()]
times = [each["step_s"] for each in steps if each.get("event") == "step"][1:]
print(json.dumps({"link": link, "way": way, "seed": int(seed), "steps": end["steps"], "step_ms": round(1e3 * statistics.median(times), 2),
                  "mean_step_ms": round(1e3 * statistics.mean(times), 2),
                  **{key: round(value, 4) for key, value in end.items() if key.startswith(("test_", "validation_"))},
                  "cable_mb": round(int(bytes_sent) / 1e6, 3)}), flush=True)
PY
}
for seed in "${seeds[@]}"; do
  for way in "${ways[@]}"; do
    mapfile -t of_way < <(settings_of "$way" "$seed")
    if [ -z "${ONLY_LINK:-}" ]; then without "${of_way[@]}"; line none "$way" "$seed" 0; fi
    [ -n "${ONLY_NONE:-}" ] && continue
    before=$(sent)
    over_the_link "${of_way[@]}"
    line "${DELAY_MS:-50}ms,${MBIT:-100}Mbit/s" "$way" "$seed" $(($(sent) - before))
  done
done
