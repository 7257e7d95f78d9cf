#!/usr/bin/env bash
# All-reduces between four hosts: gloo's, each list of transfers, and what comm.all_reduce = "auto" takes; and
# reduce-scatters and all-gathers, gloo's and ours.
# Hosts are network namespaces: at a bridge with cables whose rate is held (tc, token bucket; no delay is
# added), at a switch that delays every frame (tests/support/delayed_switch.h), and at two bridges, half of them
# each, with a cable between them: two sites. Needs root and iproute2.
#   [HOSTS=4] [ROUNDS=9] [RATE=10gbit] [DELAY_MS=10] [DELAYED_MBIT=1000] [BETWEEN_SITES=1gbit] [SIZES=1024,...]
#     [LINKS="bridge delayed sites"] bench/all_reduce_between_hosts.sh
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_all_reduce_between_hosts trireme delayed_switch
hosts=${HOSTS:-4}
# It finds out that the hosts are one machine, and would take its memory.
export UCX_TLS=${UCX_TLS:-tcp} UCX_NET_DEVICES=${UCX_NET_DEVICES:-cable}

work=$(mktemp -d)
name=trireme-bench-$$
switch=
clean_up() {
  [ -z "$switch" ] || { kill "$switch" && wait "$switch"; } || true
  switch=
  for each in $(seq 0 "$hosts") far; do ip netns del "$name-$each" 2>/dev/null || true; done
}
trap 'clean_up; rm -rf "$work"' EXIT
echo "the secret of these hosts" >"$work/secret" && chmod 600 "$work/secret"

add_bridge() {
  ip netns add "$1"
  ip -n "$1" link add bridge type bridge
  ip -n "$1" link set bridge up
}
add_hosts() {  # add_hosts BRIDGE RATE FIRST LAST
  local bridge=$1
  for each in $(seq "$3" "$4"); do
    ip netns add "$name-$each"
    ip link add cable netns "$name-$each" type veth peer name "port$each" netns "$bridge"
    ip -n "$bridge" link set "port$each" master bridge up
    ip -n "$name-$each" addr add 10.79.0.$((each + 1))/24 dev cable
    ip -n "$name-$each" link set cable up
    ip -n "$name-$each" link set lo up
    ip netns exec "$name-$each" tc qdisc replace dev cable root tbf rate "$2" burst 256kb latency 100ms
    ip netns exec "$bridge" tc qdisc replace dev "port$each" root tbf rate "$2" burst 256kb latency 100ms
  done
}
# The last namespace is the bridge's.
at_bridge() {
  add_bridge "$name-$hosts"
  add_hosts "$name-$hosts" "$1" 0 $((hosts - 1))
}
at_two_sites() {  # RATE RATE_BETWEEN
  add_bridge "$name-$hosts"
  add_bridge "$name-far"
  add_hosts "$name-$hosts" "$1" 0 $((hosts / 2 - 1))
  add_hosts "$name-far" "$1" $((hosts / 2)) $((hosts - 1))
  ip link add far netns "$name-$hosts" type veth peer name far netns "$name-far"
  for bridge in "$name-$hosts" "$name-far"; do
    ip -n "$bridge" link set far master bridge up
    ip netns exec "$bridge" tc qdisc replace dev far root tbf rate "$2" burst 256kb latency 100ms
  done
}
at_delayed_switch() {
  "$build/bin/delayed_switch" "$name" "$hosts" "$1" "$2" >"$work/switch" &
  switch=$!
  until grep -qs ready "$work/switch"; do sleep 0.1; done
}
measure() {  # measure LINK [SITES]
  for each in $(seq 0 $((hosts - 1))); do
    TRIREME_HOST_ID=$each ip netns exec "$name-$each" "$build/bin/trireme" launch -n 1 --nnodes "$hosts" \
      --node-rank "$each" --master-addr 10.79.0.1 --master-port 23456 --secret-file "$work/secret" --no-prefix \
      -- "$build/bin/bench_all_reduce_between_hosts" --rounds "${ROUNDS:-9}" --sites "${2:-1}" \
      --sizes "${SIZES:-1024,65536,1048576,26214400}" >"$work/$each" 2>"$work/$each.err" &
    pids[each]=$!
  done
  wait "${pids[@]}" || { cat "$work"/*.err >&2; return 1; }
  sed "s|^{|{\"link\": \"$1\", |" "$work/0"
}

for link in ${LINKS:-bridge delayed sites}; do
  case $link in
    bridge)
      at_bridge "${RATE:-10gbit}"
      measure "${RATE:-10gbit}" ;;
    delayed)
      at_delayed_switch "${DELAY_MS:-10}" "${DELAYED_MBIT:-1000}"
      measure "${DELAYED_MBIT:-1000}mbit ${DELAY_MS:-10}ms" ;;
    sites)
      at_two_sites "${RATE:-10gbit}" "${BETWEEN_SITES:-1gbit}"
      measure "two sites, ${BETWEEN_SITES:-1gbit}" 2 ;;
    *) echo "LINKS names '$link'; known: bridge delayed sites" >&2; exit 2 ;;
  esac
  clean_up
done
