#!/usr/bin/env bash
# A training step over a parameter server, on two hosts with a rank and a server each: hosts are network
# namespaces joined by a cable whose rate is held to that of a link (tc, token bucket; no delay is added).
# Builds alternate pass by pass; a build is a folder with bin/trireme and bin/trireme-torch. Prints medians of
# the seconds of a step, and what each is of the first build's. Needs root and iproute2.
#   [BUILDS="build/release ..."] [PASSES=5] [RATES="10gbit 1gbit 100mbit"] [STEPS=12]
#   [SETTINGS="model.hidden=[4096,512,512]"] bench/served_step.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
read -ra builds <<<"${BUILDS:-$here/../build/release}"
read -ra rates <<<"${RATES:-10gbit 1gbit 100mbit}"
read -ra settings <<<"${SETTINGS:-model.hidden=[4096,512,512]}"

source "$here/hosts.sh"

port=23456
sent() { for each in 0 1; do ip netns exec "$(host $each)" cat /sys/class/net/cable/statistics/tx_bytes; done; }
# BUILD -> seconds of each step, as JSON lines
steps_of() {
  local build=$1 coordinator ranks=()
  port=$((port + 2))
  coordinator=tcp:198.51.100.1:$((port + 1))
  served=()
  ip netns exec "$(host 0)" "$build/bin/trireme" serve-coordinator --folder "$work/cluster$port" \
    --listen "$coordinator" --servers 2 --replicas 1 --secret-file "$work/secret" >"$work/coordinator" 2>&1 &
  served+=($!)
  for each in 0 1; do
    ip netns exec "$(host $each)" "$build/bin/trireme" serve-params --coordinator "$coordinator" \
      --name "server$each" --host "host$each" --listen "tcp:198.51.100.$((each + 1)):0" \
      --secret-file "$work/secret" >"$work/server$each" 2>&1 &
    served+=($!)
  done
  for each in 0 1; do
    GLOO_SOCKET_IFNAME=cable TRIREME_HOST_ID=$(host $each) ip netns exec "$(host $each)" \
      "$build/bin/trireme" launch -n 1 --nnodes 2 --node-rank $each --master-addr 198.51.100.1 --master-port $port --secret-file "$work/secret" -- \
      "$build/bin/trireme-torch" train "$here/../examples/ps_fashion_mnist.toml" --set model.name=mlp \
      --set "train.max_steps=${STEPS:-12}" --set "ps.coordinator=$coordinator" --set "run.folder=$work/runs" \
      --set "run.name=at$port" --set checkpoint.every_steps=0 --set run.log_every_steps=1 --set lr.warmup_steps=0 \
      ${settings[@]/#/--set } >"$work/$each" 2>&1 &
    ranks+=($!)
  done
  for each in "${ranks[@]}"; do wait "$each" || { cat "$work"/[01] "$work"/server? >&2; return 1; }; done
  for each in "${served[@]}"; do kill -9 "$each" 2>/dev/null || true; done
  wait 2>/dev/null || true
  cat "$work"/runs/at$port*/metrics.jsonl
}

for rate in "${rates[@]}"; do
  shape "$rate"
  for _ in $(seq "${PASSES:-5}"); do
    for number in "${!builds[@]}"; do
      before=$(sent)
      steps_of "${builds[$number]}" >"$work/steps"
      python3 - "$work/steps" "$rate" "$number" "$before" "$(sent)" >>"$work/passes" <<'PY'
import json, statistics, sys
before, after = ([int(each) for each in text.split()] for text in sys.argv[4:])
steps = [json.loads(line) for line in open(sys.argv[1])]
times = [each["step_s"] for each in steps if each.get("event") == "step"][2:]
most = max(b - a for a, b in zip(before, after)) / (len(times) + 2) / 1e6
print(sys.argv[2], sys.argv[3], statistics.median(times), most)
PY
    done
  done
done
python3 - "$work/passes" "${builds[@]}" <<'PY'
import collections, statistics, sys
passes = collections.defaultdict(list)
for line in open(sys.argv[1]):
    rate, build, seconds, most = line.split()
    passes[rate, int(build)].append((float(seconds), float(most)))
for (rate, build), both in passes.items():
    seconds, sent = zip(*both)
    middle, first = statistics.median(seconds), statistics.median(each[0] for each in passes[rate, 0])
    print(f"{rate:>8}  {sys.argv[2 + build]}: step {1e3 * middle:.0f} ms ({1e3 * min(seconds):.0f} to "
          f"{1e3 * max(seconds):.0f}), {first / middle:.2f} times as fast as the first; the busier cable sent "
          f"{statistics.median(sent):.1f} MB a step")
PY
