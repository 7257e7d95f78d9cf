#include "trireme/comm/clone_group.h"

#include <numeric>
#include <vector>

#include "trireme/comm/internal/group_state.h"

namespace trireme::comm {

Group clone_group(const Group& group, const std::string& wish) {
  std::vector<int> everybody(static_cast<std::size_t>(group.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  return group.state().make_part(everybody, wish);
}

}  // namespace trireme::comm
