#include "trireme/ps/placement.h"

#include <array>

#include "trireme/base/error.h"
#include "trireme/ps/internal/hash.h"
#include "trireme/ps/internal/placements.h"

namespace trireme::ps {

PartitionId partition_of(TableId table, std::uint64_t key, std::uint32_t num_partitions) {
  return static_cast<PartitionId>(hash_number(key, table) & (num_partitions - 1));
}

namespace {

struct NamedPlacement {
  std::string_view name;
  PlacementFunction place;
};

constexpr std::array kPlacements = {
    NamedPlacement{"bounded-rendezvous", place_by_bounded_rendezvous},
    NamedPlacement{"hash-ring", place_on_hash_ring},
};

}  // namespace

PlacementFunction placement_function(std::string_view name) {
  for (const NamedPlacement& row : kPlacements) {
    if (row.name == name) return row.place;
  }
  throw InvalidArgument(text("there is no placement '", name, "'", suggest(name, placement_names())));
}

std::vector<std::string> placement_names() {
  std::vector<std::string> names;
  for (const NamedPlacement& row : kPlacements) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::ps
