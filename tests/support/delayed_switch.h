#pragma once
// A switch between hosts that are network namespaces, in user space: every frame arrives `delay_s` after it
// was sent, and each cable carries at most `bits_per_s` each way. It stands for links between sites where the
// kernel has no netem. Host i has the address 10.79.0.(i + 1)/24 on its interface "cable" (a TAP device), and
// its namespace is called NAME-i. Frames that would wait for more than `queue_s` are dropped, as at a switch.
// Needs root, iproute2 and /dev/net/tun; create() throws std::runtime_error that says what is missing.
//
// In C++ tests it is a thread of the object: see switched_hosts.h. From a shell it is a program, which
// removes the namespaces when it is ended (MBIT_PER_S 0: no limit):
//
// clang-format off
//   build/release/bin/delayed_switch NAME HOSTS DELAY_MS MBIT_PER_S >"$work/switch" &
//   switch=$!
//   trap 'kill $switch; wait $switch' EXIT
//   until grep -q ready "$work/switch"; do sleep 0.1; done
//   ip netns exec NAME-0 ping -c 1 10.79.0.2
// clang-format on
//
// A ping takes 2 * DELAY_MS. A frame is late by half a millisecond at most while the machine has a core for
// the switch. 100 Mbit/s cost a sixth of a core, most of it the kernel's TCP, and it carries about
// 1.5 Gbit/s: for faster links use veth pairs and tc.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace trireme::test {

struct SwitchOptions {
  std::string name;  ///< of the namespaces, before their number
  int num_hosts = 2;
  double delay_s = 0;
  double bits_per_s = 0;  ///< 0: as fast as it can
  double queue_s = 0.1;
  int mtu = 1500;
};

class DelayedSwitch {
 public:
  explicit DelayedSwitch(SwitchOptions options);
  /// The namespaces go, too: what runs in them has to have ended.
  ~DelayedSwitch();
  DelayedSwitch(const DelayedSwitch&) = delete;
  DelayedSwitch& operator=(const DelayedSwitch&) = delete;

  std::string host_name(int host) const;
  static std::string address(int host);
  /// From now on nothing goes to or comes from that host any more, and no end of a connection either.
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
