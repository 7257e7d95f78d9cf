#pragma once
// How the roles of one partition get from what they are to what they should be, a safe step at a time:
//
//   dead members are dropped, the order of the others is kept (the next in the chain has all that is stable);
//   who is missing becomes learner, and the end of the chain when it has caught up;
//   who is not wanted any more goes when all who are wanted are there; and for another primary, the old one
//   first takes nothing new until all have the same.
//
// Pure functions.

#include <optional>
#include <vector>

#include "trireme/ps/cluster_map.h"
#include "trireme/ps/messages.h"
#include "trireme/ps/placement.h"

namespace trireme::ps {

/// A server's report on a partition's present epoch.
struct PartitionEvents {
  std::optional<ServerId> caught_up, suspected;
  bool drained = false;
  bool begins_anew = false;  ///< a worker will fill it again if it was lost
};

/// The roles one step on; `epoch` is the one they get if they differ. `wanted`: where placement puts it.
PartitionEntry reconfigured(const PartitionEntry& now, const std::vector<ServerId>& wanted,
                            const ClusterMap& map, const PartitionEvents& events, Epoch epoch);

/// Servers that want to leave and are in no chain have left. Whether there were any.
bool release_leaving(ClusterMap& map);

/// For a placement: the chain of each partition, and who is getting a copy, which is not thrown away.
Placement what_partitions_have(const ClusterMap& map);

}  // namespace trireme::ps
