#pragma once
// A switch in user space between hosts that are network namespaces. Every frame arrives `delay_s` after it
// was sent, and each cable carries at most `bits_per_s` each way. It simulates links between sites if the
// kernel has no netem. Host i has the address 10.79.0.(i + 1)/24 on its interface "cable" (a TAP device), in
// the namespace NAME-i. Frames that would wait for more than `queue_s` are dropped, as at a real switch.
// Needs root, iproute2 and /dev/net/tun. create() throws std::runtime_error that says what is missing.
//
// In C++ tests the switch is a thread of the object: see switched_hosts.h. From a shell it is a program,
// which removes the namespaces when it is ended (MBIT_PER_S 0: no limit):
//
// clang-format off
//   build/release/bin/delayed_switch NAME HOSTS DELAY_MS MBIT_PER_S >"$work/switch" &
//   switch=$!
//   trap 'kill $switch; wait $switch' EXIT
//   until grep -q ready "$work/switch"; do sleep 0.1; done
//   ip netns exec NAME-0 ping -c 1 10.79.0.2
// clang-format on
//
// A ping takes 2 * DELAY_MS. A frame is at most half a millisecond late if the machine has a free core for
// the switch. 100 Mbit/s use a sixth of a core, mostly for the kernel's TCP. The switch carries about 1.5
// Gbit/s. For faster links use veth pairs and tc.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace trireme::test {

struct SwitchOptions {
  std::string name;  ///< prefix of the namespaces, before their number
  int num_hosts = 2;
  double delay_s = 0;
  double bits_per_s = 0;  ///< 0: no limit
  double queue_s = 0.1;
  int mtu = 1500;
};

class DelayedSwitch {
 public:
  explicit DelayedSwitch(SwitchOptions options);
  /// Removes the namespaces. All programs in them must have ended.
  ~DelayedSwitch();
  DelayedSwitch(const DelayedSwitch&) = delete;
  DelayedSwitch& operator=(const DelayedSwitch&) = delete;

  std::string host_name(int host) const;
  static std::string address(int host);
  /// From now on no frame reaches or leaves that host, and neither does the end of a connection.
  void cut_cable(int host);

 private:
  void create();
  void remove() const;
  void carry() const;

  const SwitchOptions options_;
  int num_created_ = 0;  ///< namespaces that are this object's
  std::vector<int> taps_;
  std::vector<std::atomic<bool>> cut_;
  int stops_ = -1;  ///< an eventfd
  std::thread thread_;
};

}  // namespace trireme::test
