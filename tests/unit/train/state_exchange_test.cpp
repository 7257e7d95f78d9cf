#include "trireme/train/state_exchange.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::train {
namespace {

using checkpoint::TensorMap;
using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor filled(double value, std::int64_t size = 3) { return at::full({size}, value, at::kFloat); }
double value_of(const TensorMap& map, const std::string& name) { return map.at(name)[0].item<double>(); }

/// "own" is everybody's; "left" is on ranks 0 and 1, "right" on 2 and 3.
TensorMap part_of(int rank) {
  return {{"own", filled(100 + rank)}, {rank < 2 ? "left" : "right", filled(rank)}};
}

TEST(StateExchange, GathersOneCopyOfEachNameOnRankZero) {
  comm::run_ranks_as_threads(4, [](comm::Context& context) {
    const TensorMap mine = part_of(context.rank());
    StateExchange exchange(context.world(), mine);
    const TensorMap all = exchange.gather(mine);
    if (!context.is_main()) {
      EXPECT_TRUE(all.empty());
      return;
    }
    ASSERT_EQ(all.size(), 3U);
    EXPECT_TRUE(all.at("own").is_same(mine.at("own"))) << "what rank 0 holds is not copied";
    EXPECT_EQ(value_of(all, "left"), 0);
    EXPECT_EQ(value_of(all, "right"), 2) << "the first rank that holds it sends it";
  });
}

TEST(StateExchange, ScattersToEveryHolder) {
  comm::run_ranks_as_threads(4, [](comm::Context& context) {
    const TensorMap mine = part_of(context.rank());
    StateExchange exchange(context.world(), mine);
    TensorMap found;
    if (context.is_main()) found = {{"own", filled(1)}, {"left", filled(2)}, {"right", filled(3)}};
    exchange.scatter(found, mine, "tensor");
    EXPECT_EQ(value_of(mine, "own"), 1);
    EXPECT_EQ(value_of(mine, context.rank() < 2 ? "left" : "right"), context.rank() < 2 ? 2 : 3);
  });
}

TEST(StateExchange, RefusesWhatIsMissingOrOfAnotherShapeBeforeItCopies) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    const TensorMap mine = {{"a", filled(0)}, {"b", filled(0)}};
    StateExchange exchange(context.world(), mine);
    EXPECT_THAT(
        [&] {
          exchange.scatter({{"a", filled(1)}}, mine, "tensor");
        },
        ThrowsMessage<DataError>(HasSubstr("has no tensor 'b'")));
    EXPECT_THAT(
        [&] {
          exchange.scatter({{"a", filled(1)}, {"b", filled(1, 4)}}, mine, "tensor");
        },
        ThrowsMessage<DataError>(HasSubstr("'b' has shape [4]")));
    EXPECT_EQ(value_of(mine, "a"), 0);
  });
}

TEST(StateExchange, RanksThatHoldANameDifferentlyAreRefused) {
  EXPECT_THAT(
      [] {
        comm::run_ranks_as_threads(2, [](comm::Context& context) {
          StateExchange(context.world(), {{"a", filled(0, 3 + context.rank())}});
        });
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("'a' is [3] on rank 0 and [4] on rank 1")));
}

}  // namespace
}  // namespace trireme::train
