#include "trireme/comm/all_reduce_setting.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/topology/all_reduce_cost.h"
#include "trireme/topology/networks.h"

namespace trireme::comm {

std::vector<std::string> all_reduce_names() {
  std::vector<std::string> names{kAllReduceAuto, kAllReduceByGloo};
  for (const auto each : topology::algorithms()) names.push_back(topology::name_of(each));
  names.push_back(topology::name_of(topology::Algorithm::kLevels));
  return names;
}

void check_all_reduce(const std::string& name) {
  const auto known = all_reduce_names();
  require(std::ranges::find(known, name) != known.end(), "there is no all-reduce between hosts '", name, "'",
          suggest(name, known));
}

std::vector<std::string> network_names() {
  std::vector<std::string> names = topology::network_names();
  names.emplace_back(kNetworkAuto);
  return names;
}

void check_network(const std::string& name) {
  if (name == kNetworkAuto) return;
  const std::string reason = topology::network_unavailable_because(name);
  require(reason.empty(), "the network '", name, "' (comm.network) cannot be used here: ", reason,
          "; 'tcp' can");
}

}  // namespace trireme::comm
