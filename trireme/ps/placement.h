#pragma once
// Placement of keys and partitions. A key belongs to a partition by its hash alone (ADR 0035). A partition
// belongs to servers by a function of the members and of the present placement (ADR 0066). Pure functions.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/ps/ids.h"

namespace trireme::ps {

/// Of chunk `key` of a table. `num_partitions` is a power of
/// two.
PartitionId partition_of(TableId table, std::uint64_t key, std::uint32_t num_partitions);

/// A server that partitions may be placed on.
struct Candidate {
  ServerId id = kNoServer;
  std::string name;  ///< decides the server's partitions: a server that returns under its name gets the same
                     ///< ones
  std::string host;  ///< no two replicas of a partition share one, as long as there are enough
  double weight = 1;
};

struct PlacementOptions {
  std::uint32_t num_partitions = 4096;
  std::uint32_t num_replicas = 2;
  double epsilon = 0.05;  ///< no server has more than (1 + epsilon) times its share
};

/// For each partition its servers, the primary first: num_replicas, or as many as there are servers.
using Placement = std::vector<std::vector<ServerId>>;
/// `before`: the present placement, with servers that may be gone; empty before the first.
using PlacementFunction = Placement (*)(std::span<const Candidate> servers, const PlacementOptions& options,
                                        const Placement& before);

/// "bounded-rendezvous" (the default), "hash-ring". Throws InvalidArgument with the known names.
PlacementFunction placement_function(std::string_view name);
std::vector<std::string> placement_names();

}  // namespace trireme::ps
