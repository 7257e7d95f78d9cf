#include "tests/support/two_hosts.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::test {

TwoHosts::TwoHosts() : NamespaceHosts(2, "10.77.0.") {
  unavailable_because_ = ::geteuid() == 0 ? create() : "network namespaces need root";
}

TwoHosts::~TwoHosts() {
  if (::geteuid() != 0) return;
  for (const int host : {0, 1}) run({"ip", "netns", "del", name(host)});
}

std::string TwoHosts::create() const {
  std::vector<std::string> commands = {
      text("ip netns add ", name(0)),
      text("ip netns add ", name(1)),
      text("ip link add cable netns ", name(0), " type veth peer name cable netns ", name(1)),
  };
  for (const int host : {0, 1}) {
    const std::string ip = text("ip -n ", name(host));
    for (const char* rest : {" link set lo up", " link add aside type veth peer name nowhere",
                             " addr add 192.0.2.1/24 dev aside", " link set aside up"}) {
      commands.push_back(ip + rest);
    }
    commands.push_back(text(ip, " addr add ", address(host), "/24 dev cable"));
    commands.push_back(text(ip, " link set cable up"));
  }
  for (const auto& command : commands) {
    const auto result = run(split(command, ' '), {}, 20);
    if (result.exit_code != 0) return text("no network namespaces: '", command, "': ", result.err);
  }
  // Both ends have been switched on, but each notices the other end later. Before that, a library that looks
  // for working interfaces would not find them.
  const Deadline deadline = Deadline::after_s(10);
  for (const int host : {0, 1}) {
    while (run({"ip", "-n", name(host), "link", "show", "cable"}).out.find("state UP") == std::string::npos) {
      if (deadline.expired()) return "the cable between network namespaces does not come up";
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  return {};
}

void TwoHosts::cut_cable() const {
  // Frames to a wrong station address are dropped silently, as at a failed switch. A disabled interface would
  // be visible to the programs of its host.
  for (const int host : {0, 1}) {
    run({"ip", "-n", name(host), "neigh", "replace", address(1 - host), "lladdr", "02:00:00:00:00:99", "dev",
         "cable", "nud", "permanent"});
  }
}

}  // namespace trireme::test
