#pragma once
// The steps from the present roles of one partition to the target roles, each of them safe:
//
//   dead members are dropped, the order of the others is kept (the next in the chain has all that is stable);
//   a missing server becomes learner, and the end of the chain when it has caught up;
//   a server outside the target leaves when all of the target are there; and for another primary, the old
//   one first takes no new requests until all replicas are equal.
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

/// For a placement: the chain of each partition, and the server that gets a copy, which is kept.
Placement what_partitions_have(const ClusterMap& map);

}  // namespace trireme::ps
