#pragma once
// State of a run in the memory of its processes: each holds a part of the state of one step. Ranks restore it
// from each other's memory, without a file, also when they are fewer or more than before. PeerCopies holds
// every shard on two ranks, so that the loss of one rank loses nothing. Gemini (Wang et al., SOSP 2023) keeps
// checkpoints in the memory of peers in this way.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/comm/group.h"

namespace trireme::checkpoint {

/// One process's part of the state after a step.
struct HeldState {
  std::int64_t step = 0;
  int world = 0;  ///< in which the step was done: another one may do it again, with other bits
  Shards shards = {};
  std::vector<std::string> names = {};  ///< of all tensors of the state, rising: other ranks hold the rest
};

/// Names of all shards of all ranks, rising. Collective.
std::vector<std::string> names_of_all(comm::Group group, const Shards& mine);

/// Which states can be restored is found in `held` of all ranks: the newest step whose tensors are all there,
/// in the newest world. Empty where there is none. Collective.
class HeldStates {
 public:
  /// `held`: of this rank; none on a rank that has just been started.
  HeldStates(comm::Group group, std::vector<HeldState> held);

  /// The step, and where its shards are.
  struct Found {
    std::int64_t step = 0;
    int world = 0;
    std::vector<ShardCatalogue::Entry> entries = {};  ///< of all ranks, by name
  };
  const std::optional<Found>& newest() const { return newest_; }
  /// Fills the shards of every rank from the newest step. Throws InvalidArgument, on every rank, when a name
  /// is missing or has another shape or type. Collective.
  void restore(const Shards& wanted) const;

 private:
  /// Step and world.
  using Instant = std::pair<std::int64_t, int>;
  Shards mine_at(const Instant& instant) const;
  bool is_complete(const ShardCatalogue& catalogue, const Instant& instant) const;
  std::set<Instant, std::greater<>> instants_of_all();

  comm::Group group_;
  const std::vector<HeldState> held_;  ///< shares its tensors
  std::optional<Found> newest_;
};

/// Copies of a state in memory: each shard is copied by two ranks, on two hosts where there are more than
/// one.
class PeerCopies {
 public:
  /// `mine`: this rank's shards, of names and boxes that stay the same. `hosts`: a number of each rank's
  /// host; empty: one host. The same on all ranks. Collective.
  PeerCopies(comm::Group group, const Shards& mine, std::vector<int> hosts = {});

  /// Collective. Costs one copy of this rank's shards, and one exchange between neighbours.
  HeldState copy(const Shards& mine, std::int64_t step);

 private:
  Shards wanted() const;

  /// Ranks that copy an entry.
  struct Copiers {
    int first = 0, second = 0;  ///< equal in a group of one
  };
  Copiers copiers_of(const ShardCatalogue::Entry& entry) const;
  bool on_other_hosts(int one, int other) const;

  comm::Group group_;
  const std::vector<int> hosts_;
  const bool is_one_host_;
  const ShardCatalogue catalogue_;
  std::vector<std::string> names_;
  std::optional<ShardExchange> to_peers_;  ///< none: every shard has two holders
};

}  // namespace trireme::checkpoint
