# Hosts on this machine, for benchmarks that source this: HOSTS (2) network namespaces at a bridge, 198.51.100.1 and up, a
# folder $work and a secret in it. They go with the shell, and with them the processes in $served. Needs root and iproute2.

work=$(mktemp -d)
served=()
hosts=${HOSTS:-2}
host() { echo "trireme-bench-$$-$1"; }
each_host() { seq 0 $((hosts - 1)); }
bridge=$(host bridge)
clean_up() {
  for each in ${served[@]+"${served[@]}"}; do kill -9 "$each" 2>/dev/null || true; done
  for each in $(each_host) bridge; do ip netns del "$(host "$each")" 2>/dev/null || true; done
  rm -rf "$work"
}
trap clean_up EXIT
echo "the secret of these hosts" >"$work/secret" && chmod 600 "$work/secret"
ip netns add "$bridge"
ip -n "$bridge" link add bridge type bridge
ip -n "$bridge" link set bridge up
for each in $(each_host); do
  ip netns add "$(host "$each")"
  ip link add cable netns "$(host "$each")" type veth peer name "port$each" netns "$bridge"
  ip -n "$bridge" link set "port$each" master bridge up
  ip -n "$(host "$each")" addr add 198.51.100.$((each + 1))/24 dev cable
  ip -n "$(host "$each")" link set cable up
  ip -n "$(host "$each")" link set lo up
done

# RATE: holds each cable to it, both ways (tc, token bucket; no delay is added)
shape() {
  for each in $(each_host); do
    ip netns exec "$(host "$each")" tc qdisc replace dev cable root tbf rate "$1" burst 256kb latency 100ms
    ip netns exec "$bridge" tc qdisc replace dev "port$each" root tbf rate "$1" burst 256kb latency 100ms
  done
}
