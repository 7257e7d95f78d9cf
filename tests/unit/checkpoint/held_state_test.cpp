#include "trireme/checkpoint/held_state.h"

#include <gmock/gmock.h>

#include "tests/unit/checkpoint/cuts.h"
#include "tests/unit/checkpoint/elsewhere.h"
#include "trireme/comm/context.h"

namespace trireme::checkpoint {
namespace {

constexpr Cut kAllCuts[] = {Cut::kReplicas, Cut::kRows, Cut::kColumns, Cut::kFlat, Cut::kByName};

/// The states that each rank of a world holds.
using Memories = std::vector<std::vector<HeldState>>;

/// `hosts`: the host of each rank.
Memories copies_of(Cut cut, std::int64_t step, const std::vector<int>& hosts = {0, 0, 0}) {
  const int size = static_cast<int>(hosts.size());
  Memories memories(hosts.size());
  comm::run_ranks_as_threads(size, [&](comm::Context& context) {
    const Shards mine = shards_of(cut, context.rank(), size, true);
    PeerCopies copies(context.world(), mine, hosts);
    memories[static_cast<std::size_t>(context.rank())].push_back(copies.copy(mine, step));
  });
  return memories;
}

/// The states of the ranks without copies on other ranks.
Memories own_states(Cut cut, std::int64_t step) {
  Memories memories(3);
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    const Shards mine = shards_of(cut, context.rank(), 3, true);
    memories[static_cast<std::size_t>(context.rank())].push_back(
        {.step = step, .shards = mine, .names = names_of_all(context.world(), mine)});
  });
  return memories;
}

/// The step that the ranks of `memories` restore with another sharding, and with a new rank at the end. -1:
/// none.
std::int64_t restored_step(Memories memories, Cut cut) {
  memories.emplace_back();
  const int size = static_cast<int>(memories.size());
  std::int64_t step = -1;
  comm::run_ranks_as_threads(size, [&](comm::Context& context) {
    const HeldStates states(context.world(), memories[static_cast<std::size_t>(context.rank())]);
    if (!states.newest()) return;
    const Shards wanted = shards_of(cut, context.rank(), size, false);
    states.restore(wanted);
    check_numbers(wanted);
    if (context.is_main()) step = states.newest()->step;
  });
  return step;
}

Memories without(Memories memories, int rank) {
  memories.erase(memories.begin() + rank);
  return memories;
}

TEST(PeerCopies, AnyRankMayBeLost) {
  for (const Cut from : kAllCuts) {
    const Memories memories = copies_of(from, 7);
    for (const Cut to : {Cut::kReplicas, Cut::kRows, Cut::kFlat}) {
      for (int lost = 0; lost < 3; ++lost)
        EXPECT_EQ(restored_step(without(memories, lost), to), 7) << static_cast<int>(from) << " " << lost;
    }
  }
}

TEST(PeerCopies, AnyHostMayBeLost) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, {5, 2, 5, 2}, {0, 1, 1, 1}}) {
    for (const Cut cut : kAllCuts) {
      for (const int lost : hosts) {
        Memories left = copies_of(cut, 7, hosts);
        for (int rank = 3; rank >= 0; --rank)
          if (hosts[static_cast<std::size_t>(rank)] == lost) left = without(std::move(left), rank);
        EXPECT_EQ(restored_step(left, Cut::kRows), 7) << static_cast<int>(cut) << " " << lost;
      }
    }
  }
}

TEST(PeerCopies, KeepCopiesWhenStateChanges) {
  Memories memories(2);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Shards mine = shards_of(Cut::kRows, context.rank(), 2, true);
    PeerCopies copies(context.world(), mine);
    memories[static_cast<std::size_t>(context.rank())].push_back(copies.copy(mine, 7));
    for (const Shard& shard : mine) shard.tensor.zero_();
  });
  EXPECT_EQ(restored_step(without(memories, 0), Cut::kReplicas), 7);
}

TEST(PeerCopies, ValuesThatLiveElsewhereAreCopied) {
  Memories memories(2);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const auto store = std::make_shared<AwayStore>();
    const Shards mine = store->take(shards_of(Cut::kRows, context.rank(), 2, true));
    PeerCopies copies(context.world(), mine);
    memories[static_cast<std::size_t>(context.rank())].push_back(copies.copy(mine, 7));
  });
  EXPECT_EQ(restored_step(without(memories, 1), Cut::kReplicas), 7);
}

TEST(HeldStates, ReplicasNeedNoCopies) {
  EXPECT_EQ(restored_step(without(own_states(Cut::kReplicas, 9), 0), Cut::kRows), 9);
}

TEST(HeldStates, RejectsStateWithMissingShard) {
  for (const Cut cut : {Cut::kRows, Cut::kColumns, Cut::kFlat, Cut::kByName})
    EXPECT_EQ(restored_step(without(own_states(cut, 9), 1), Cut::kReplicas), -1) << static_cast<int>(cut);
}

TEST(HeldStates, TheNewestCompleteStepIsRestored) {
  Memories memories = copies_of(Cut::kRows, 7);
  const Memories newer = own_states(Cut::kRows, 8), all_have = own_states(Cut::kReplicas, 6);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    memories[rank].push_back(newer[rank].front());
    memories[rank].push_back(all_have[rank].front());
  }
  EXPECT_EQ(restored_step(memories, Cut::kFlat), 8);
  EXPECT_EQ(restored_step(without(memories, 2), Cut::kFlat), 7);
}

/// A rank failed in its update, after another rank had completed it.
/// The step was then repeated with other bits, and part of that state is lost.
TEST(HeldStates, StatesOfDifferentWorldsAreNotMixed) {
  for (const Cut cut : kAllCuts) {
    Memories memories = copies_of(cut, 7);
    for (std::size_t rank = 1; rank < 3; ++rank) {
      HeldState again = own_states(cut, 7).at(rank).at(0);
      again.world = 1;
      for (Shard& shard : again.shards) shard.tensor = shard.tensor + 1000;
      if (cut == Cut::kReplicas) again.shards.pop_back();
      memories[rank].insert(memories[rank].begin(), again);
    }
    EXPECT_EQ(restored_step(memories, Cut::kRows), 7) << static_cast<int>(cut);
  }
}

TEST(HeldStates, OneReplicaWithLaterStepSuffices) {
  Memories memories = own_states(Cut::kReplicas, 8);
  memories[0].front().step = 9;
  EXPECT_EQ(restored_step(without(memories, 1), Cut::kReplicas), 9);
}

TEST(HeldStates, NoMemoryHasNoState) { EXPECT_EQ(restored_step(Memories(2), Cut::kReplicas), -1); }

}  // namespace
}  // namespace trireme::checkpoint
