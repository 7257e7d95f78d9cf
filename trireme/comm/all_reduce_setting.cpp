#include "trireme/comm/all_reduce_setting.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/topology/all_reduce_cost.h"

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

}  // namespace trireme::comm
