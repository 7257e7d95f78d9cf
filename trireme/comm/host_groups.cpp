#include "trireme/comm/host_groups.h"

#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/internal/host_layout.h"

namespace trireme::comm {
namespace {

HostLayout hosts_under(const Group& group) {
  const GroupParts& parts = group.state().parts;
  return layout_of(parts.host_ids, parts.rank);
}

}  // namespace

int num_hosts(const Group& group) { return static_cast<int>(hosts_under(group).ranks_of_host.size()); }

HostGroups make_host_groups(const Group& group) {
  const HostLayout layout = hosts_under(group);
  std::size_t lanes = layout.members.size();
  for (const auto& ranks : layout.ranks_of_host) lanes = std::min(lanes, ranks.size());
  HostGroups made{.host = layout.host,
                  .num_hosts = static_cast<int>(layout.ranks_of_host.size()),
                  .lanes = static_cast<int>(lanes),
                  .inside = {},
                  .between = {},
                  .ranks = layout.ranks_of_host};
  if (layout.members.size() > 1)
    made.inside = group.state().make_part(layout.members, text("inside", layout.host));
  if (!layout.counterparts.empty())
    made.between = group.state().make_part(layout.counterparts, text("between", layout.place));
  return made;
}

}  // namespace trireme::comm
