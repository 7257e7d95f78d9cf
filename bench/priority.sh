#!/usr/bin/env bash
# A data-parallel step over two hosts with a rank each, gradients in the order in which they become ready and in
# that of the next forward: hosts are network namespaces joined by a cable whose rate is held to that of a link
# (tc, token bucket; no delay is added). "unshaped" leaves it as it is. Both ways alternate pass by pass. Prints
# medians of the seconds of a step. Needs root and iproute2.
#   [BUILD=build/release] [PASSES=5] [RATES="unshaped 1gbit 100mbit"] [STEPS=60] [SLICES="512 tuned"]
#   [SETTINGS="model.hidden=[1536,1024,1024,1024] train.global_batch=384"] bench/priority.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$here/../build/release}
read -ra rates <<<"${RATES:-unshaped 1gbit 100mbit}"
read -ra slices <<<"${SLICES:-512}"  # KiB; "tuned": what the run finds in its first forty steps
read -ra settings <<<"${SETTINGS:-model.hidden=[1536,1024,1024,1024] train.global_batch=384}"

source "$here/hosts.sh"

port=23456
# NAME SETTING... -> metrics of a run, as JSON lines
steps_of() {
  local ranks=()
  port=$((port + 2))
  for each in 0 1; do
    GLOO_SOCKET_IFNAME=cable TRIREME_HOST_ID=$(host $each) ip netns exec "$(host $each)" \
      "$build/bin/trireme" launch -n 1 --nnodes 2 --node-rank $each --master-addr 198.51.100.1 --master-port $port \
      --secret-file "$work/secret" -- "$build/bin/trireme-torch" train "$here/../examples/quick.toml" \
      --set train.accumulation=1 --set train.epochs=1000 --set "train.max_steps=${STEPS:-60}" \
      --set eval.every_steps=1000000 --set checkpoint.every_steps=0 --set run.log_every_steps=10 --set train.clip_norm=0 \
      --set "run.folder=$work/runs" --set "run.name=at$port" ${settings[@]/#/--set } ${@/#/--set } >"$work/$each" 2>&1 &
    ranks+=($!)
  done
  for each in "${ranks[@]}"; do wait "$each" || { cat "$work"/[01] >&2; return 1; }; done
  grep -h "are fastest" "$work/0" >&2 || true
  cat "$work"/runs/at$port*/metrics.jsonl
}

for rate in "${rates[@]}"; do
  [[ $rate == unshaped ]] || shape "$rate"
  for _ in $(seq "${PASSES:-5}"); do
    for slice in none "${slices[@]}"; do
      if [[ $slice == none ]]; then way=(parallel.priority=none); else way=(parallel.priority=forward "parallel.slice_kib=${slice/tuned/0}"); fi
      steps_of "${way[@]}" >"$work/steps"
      python3 - "$work/steps" "$rate" "$slice" >>"$work/passes" <<'PY'
import json, statistics, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
times = [each["step_s"] for each in steps if each.get("event") == "step"]
times = times[5 if sys.argv[3] == "tuned" else 1:]
print(sys.argv[2], sys.argv[3], statistics.median(times))
PY
    done
  done
done
python3 - "$work/passes" <<'PY'
import collections, statistics, sys
passes = collections.defaultdict(list)
for line in open(sys.argv[1]):
    rate, slice, seconds = line.split()
    passes[rate, slice].append(float(seconds))
for (rate, slice), seconds in passes.items():
    middle, first = statistics.median(seconds), statistics.median(passes[rate, "none"])
    size = "a size that was found" if slice == "tuned" else f"{slice} KiB"
    way = "as they become ready" if slice == "none" else f"by need, slices of {size}"
    print(f"{rate:>8}  {way}: step {1e3 * middle:.0f} ms ({1e3 * min(seconds):.0f} to {1e3 * max(seconds):.0f}), "
          f"{first / middle:.2f} times as fast as in order")
PY
