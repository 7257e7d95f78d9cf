# Two hosts on this machine, for benchmarks that source this: network namespaces joined by a cable, 198.51.100.1 and .2, a
# folder $work and a secret in it. They go with the shell, and with them the processes in $served. Needs root and iproute2.

work=$(mktemp -d)
served=()
host() { echo "trireme-bench-$$-$1"; }
clean_up() {
  for each in ${served[@]+"${served[@]}"}; do kill -9 "$each" 2>/dev/null || true; done
  for each in 0 1; do ip netns del "$(host $each)" 2>/dev/null || true; done
  rm -rf "$work"
}
trap clean_up EXIT
echo "the secret of two hosts" >"$work/secret" && chmod 600 "$work/secret"
for each in 0 1; do ip netns add "$(host $each)"; done
ip link add cable netns "$(host 0)" type veth peer name cable netns "$(host 1)"
for each in 0 1; do
  ip -n "$(host $each)" addr add 198.51.100.$((each + 1))/24 dev cable
  ip -n "$(host $each)" link set cable up
  ip -n "$(host $each)" link set lo up
done

# RATE: holds the cable to it, both ways (tc, token bucket; no delay is added)
shape() {
  for each in 0 1; do
    ip netns exec "$(host $each)" tc qdisc replace dev cable root tbf rate "$1" burst 256kb latency 100ms
  done
}
