#pragma once
// Hosts on one machine (namespace_hosts.h) that are joined by a switch (delayed_switch.h). It delays every
// frame and limits the rate of each cable, like links between sites. Needs root, iproute2 and /dev/net/tun.
// unavailable_because() says what is missing.

#include <optional>

#include "tests/support/delayed_switch.h"
#include "tests/support/namespace_hosts.h"

namespace trireme::test {

class SwitchedHosts : public NamespaceHosts {
 public:
  /// Each frame takes `delay_s` one way; `bits_per_s` of 0 sets no limit.
  SwitchedHosts(int num_hosts, double delay_s, double bits_per_s = 0);

  /// From now on no frame reaches or leaves that host, and neither does the end of a connection.
  void cut_cable(int host) { switch_->cut_cable(host); }

 private:
  std::optional<DelayedSwitch> switch_;
};

}  // namespace trireme::test
