#include "trireme/checkpoint/shard_exchange.h"

#include <gmock/gmock.h>

#include "tests/unit/checkpoint/cuts.h"
#include "tests/unit/checkpoint/elsewhere.h"
#include "trireme/comm/context.h"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor filled(double value, std::int64_t size = 3) { return at::full({size}, value, at::kFloat); }

/// "own" is on all ranks, "left" on ranks 0 and 1, and "right" on ranks 2 and 3.
Shards part_of(int rank) {
  return {whole_shard("own", filled(100 + rank)), whole_shard(rank < 2 ? "left" : "right", filled(rank))};
}

double value_of(const Shards& shards, const std::string& name) {
  for (const Shard& shard : shards) {
    if (shard.name == name) return shard.tensor[0].item<double>();
  }
  throw InvalidArgument("no " + name);
}

TEST(ShardExchange, BringsAnyCutToAnyOther) {
  for (const Cut from : {Cut::kReplicas, Cut::kRows, Cut::kColumns, Cut::kFlat, Cut::kByName}) {
    for (const Cut to : {Cut::kReplicas, Cut::kRows, Cut::kColumns, Cut::kFlat, Cut::kByName}) {
      comm::run_ranks_as_threads(3, [&](comm::Context& context) {
        const Shards have = shards_of(from, context.rank(), 3, true);
        const Shards want = shards_of(to, context.rank(), 3, false);
        ShardExchange exchange(context.world(), have, want);
        exchange.run(have, want);
        check_numbers(want);
      });
    }
  }
}

TEST(ShardExchange, MovesDeviceValuesOnEitherSide) {
  enum class Away { kSource, kTarget, kBoth };
  for (const Away away : {Away::kSource, Away::kTarget, Away::kBoth}) {
    for (const Cut to : {Cut::kReplicas, Cut::kRows, Cut::kColumns, Cut::kFlat}) {
      comm::run_ranks_as_threads(3, [&](comm::Context& context) {
        const auto store = std::make_shared<AwayStore>();
        Shards have = shards_of(Cut::kColumns, context.rank(), 3, true),
               want = shards_of(to, context.rank(), 3, false);
        if (away != Away::kTarget) have = store->take(have);
        if (away != Away::kSource) want = store->take(want);
        ShardExchange(context.world(), have, want).run(have, want);
        check_numbers(away == Away::kSource ? want : store->in_memory(want));
      });
    }
  }
}

TEST(ShardExchange, OneRankReceivesShardsOfAllRanks) {
  comm::run_ranks_as_threads(4, [](comm::Context& context) {
    const Shards have = part_of(context.rank());
    Shards want;
    if (context.is_main()) {
      want = {whole_shard("left", filled(0)), whole_shard("own", filled(0)), whole_shard("right", filled(0))};
    }
    ShardExchange(context.world(), have, want).run(have, want);
    if (!context.is_main()) return;
    EXPECT_EQ(value_of(want, "own"), 100) << "its own";
    EXPECT_EQ(value_of(want, "left"), 0);
    EXPECT_GE(value_of(want, "right"), 2);
  });
}

TEST(ShardExchange, OfReplicasThatDifferTheFirstCounts) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    Shards have = {whole_shard("mean", filled(7 + context.rank()))};
    have[0].replicas = Replicas::kFirstCounts;
    const Shards want = {whole_shard("mean", filled(0))};
    ShardExchange(context.world(), have, want).run(have, want);
    EXPECT_EQ(value_of(want, "mean"), 7);
  });
}

TEST(ShardExchange, RejectsMissingShards) {
  const auto exchange = [](const Shards& have, const Shards& want) {
    comm::run_ranks_as_threads(1,
                               [&](comm::Context& context) { ShardExchange(context.world(), have, want); });
  };
  EXPECT_THAT([&] { exchange({}, {whole_shard("a", filled(0))}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("wants 3 elements of 'a', and ranks have 0 of them")));
  EXPECT_THAT([&] { exchange({whole_shard("a", filled(0, 4))}, {whole_shard("a", filled(0))}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("'a' is [4]")));
}

TEST(ShardCatalogue, RejectsNameHeldDifferentlyByRanks) {
  EXPECT_THAT(
      [] {
        comm::run_ranks_as_threads(2, [](comm::Context& context) {
          ShardCatalogue(context.world(), {whole_shard("a", filled(0, 3 + context.rank()))});
        });
      },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("'a' is [3]"), HasSubstr("on rank 0 and [4]"))));
}

ShardCatalogue::Entry entry_of(const std::string& name, std::int64_t size, std::vector<int> holders) {
  return {.name = name,
          .global_sizes = {size},
          .type = at::kFloat,
          .box = whole_box({size}),
          .replicas = Replicas::kEqual,
          .holders = std::move(holders)};
}

TEST(ShardCatalogue, GapsAndOverlapsAreRejected) {
  const auto part = [](std::int64_t begin, std::int64_t size) {
    ShardCatalogue::Entry entry = entry_of("a", 8, {0});
    entry.box = {.offsets = {begin}, .sizes = {size}};
    return entry;
  };
  ShardCatalogue({part(0, 4), part(4, 4)}).check_complete();
  EXPECT_THAT(
      [&] {
        ShardCatalogue({part(0, 4), part(5, 3)}).check_complete();
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("no rank holds 1 of the 8 elements of 'a'")));
  EXPECT_THAT(
      [&] {
        ShardCatalogue({part(0, 4), part(3, 5)}).check_complete();
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("[0:4] and [3:8] of 'a' overlap")));
}

TEST(ShareOut, ReplicasWriteAlikeManyBytes) {
  std::vector<ShardCatalogue::Entry> entries;
  for (int i = 0; i < 40; ++i) entries.push_back(entry_of(text("t", i), 100 + 13 * i, {0, 1, 2, 3}));
  const ShardCatalogue catalogue(entries);
  const std::vector<ShardWriter> writers = share_out(catalogue, {true, true, true, true});
  std::vector<std::uint64_t> bytes(4, 0);
  for (std::size_t i = 0; i < writers.size(); ++i) {
    EXPECT_EQ(writers[i].source, writers[i].writer);
    bytes[static_cast<std::size_t>(writers[i].writer)] += catalogue.entries()[i].bytes();
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most - *least, 4u * 100);
}

TEST(ShareOut, NonWriterHandsOverUniqueParts) {
  const ShardCatalogue catalogue({entry_of("both", 10, {0, 1}), entry_of("ours", 10, {1})});
  const std::vector<ShardWriter> writers = share_out(catalogue, {true, false});
  EXPECT_EQ(writers[0].source, 0);
  EXPECT_EQ(writers[1].writer, 0);
  EXPECT_EQ(writers[1].source, 1);
}

}  // namespace
}  // namespace trireme::checkpoint
