#include "tests/support/switched_hosts.h"

#include <unistd.h>

#include <stdexcept>

namespace trireme::test {

SwitchedHosts::SwitchedHosts(int num_hosts, double delay_s, double bits_per_s)
    : NamespaceHosts(num_hosts, "10.79.0.") {
  if (::geteuid() != 0) {
    unavailable_because_ = "network namespaces need root";
    return;
  }
  try {
    switch_.emplace(
        SwitchOptions{.name = prefix_, .num_hosts = num_hosts, .delay_s = delay_s, .bits_per_s = bits_per_s});
  } catch (const std::runtime_error& error) {
    unavailable_because_ = error.what();
  }
}

}  // namespace trireme::test
