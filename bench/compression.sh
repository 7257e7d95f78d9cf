#!/usr/bin/env bash
# A data-parallel training step of hosts with compressed gradients, beside PyTorch's hooks: hosts are
# network namespaces at a bridge by cables whose rate is held to that of a link (tc, token bucket; no delay is
# added). Systems alternate pass by pass. MB on the wire are what the cable of the first host has sent per
# step, with all headers. Needs root and iproute2.
#   [PEER_PYTHON=python with torch] [PASSES=5] [RATES="10gbit 1gbit 100mbit"] [MODELS=wide]
#   [COMPRESSIONS="none fp16 int8 ..."] [STEPS=10] [RANKS=1, on each host] [SCOPES="auto all hosts"]
#   [HOSTS=2] [PEERS=0: without PyTorch] bench/compression.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_training_step trireme
if [ "${PEERS:-1}" = 0 ]; then PEER_PYTHON=python3; else needs_peer_python; fi
read -ra scopes <<<"${SCOPES:-auto}"
read -ra rates <<<"${RATES:-10gbit 1gbit 100mbit}"
read -ra models <<<"${MODELS:-wide}"
read -ra compressions <<<"${COMPRESSIONS:-none fp16 int8 sign top-k dgc power-sgd}"

source "$here/hosts.sh"

# One JSON line of rank 0. The measurement counts once it is printed: PyTorch's gloo now and then aborts
# while it is torn down.
port=23456
on_hosts() {
  port=$((port + 1))
  for each in $(each_host); do
    GLOO_SOCKET_IFNAME=cable TRIREME_HOST_ID=$(host $each) ip netns exec "$(host $each)" \
      "$build/bin/trireme" launch -n "${RANKS:-1}" --nnodes "$hosts" --node-rank $each --master-addr 198.51.100.1 \
      --master-port $port --secret-file "$work/secret" -- "$@" >"$work/$each" 2>"$work/$each.err" &
  done
  wait || true
  grep -o '{.*}' "$work/0" || { cat "$work/0.err" >&2; return 1; }
}

lines=$work/lines
for model in "${models[@]}"; do
  for rate in "${rates[@]}"; do
    shape "$rate"
    for _ in $(seq "${PASSES:-5}"); do
      for compression in "${compressions[@]}"; do
        step=(--model "$model" --steps "${STEPS:-10}" --compression "$compression")
        for scope in "${scopes[@]}"; do
          line=$(on_hosts "$build/bin/bench_training_step" "${step[@]}" --scope "$scope")
          echo "$rate $line" >>"$lines"
        done
        [ "${PEERS:-1}" = 0 ] || case $compression in
          none | fp16 | power-sgd)
            line=$(on_hosts "$PEER_PYTHON" "$here/peers/training_step.py" "${step[@]}") || continue
            echo "$rate $line" >>"$lines"
            ;;
        esac
      done
    done
  done
done
cat "$lines"
"$PEER_PYTHON" "$here/peers/training_step.py" --links "$lines"
