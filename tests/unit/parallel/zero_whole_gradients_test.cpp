// Compressions that process whole gradients, with sharding. An owner gets its part of the replicas' result,
// bit by bit, and the residuals are equal, too.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/parallel/sharded_steps.h"

namespace trireme::parallel {
namespace {

using test::kEncoded;
using test::kPlain;
using test::reduce_in_shards;
using test::Reduced;
using test::shard_options;
using test::ShardSetting;

void expect_same(const Reduced& found, const Reduced& expected, const std::string& what) {
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (std::size_t step = 0; step < found.steps.size(); ++step) {
    for (const auto* names : {&kPlain, &kEncoded}) {
      for (const std::string& name : *names)
        EXPECT_TRUE(at::equal(found.steps[step].at(name), expected.steps[step].at(name)))
            << what << ", " << name << " in step " << step;
    }
  }
  for (std::size_t rank = 0; rank < found.kept.size(); ++rank) {
    const optim::NamedTensors &mine = found.kept[rank].own, &of_replica = expected.kept[rank].own;
    ASSERT_EQ(mine.size(), of_replica.size()) << what;
    EXPECT_FALSE(mine.empty());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(mine[i].first, of_replica[i].first);
      EXPECT_TRUE(at::equal(mine[i].second, of_replica[i].second)) << what << ", " << mine[i].first;
    }
  }
}

class ZeroWholeGradients : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, ZeroWholeGradients, testing::Values("dgc", "power-sgd"), [](const auto& row) {
  std::string name = row.param;
  std::erase(name, '-');
  return name;
});

TEST_P(ZeroWholeGradients, EqualReducedGradientsOfReplicas) {
  for (const int ranks : {2, 3}) {
    for (const ReduceScale scale : {ReduceScale::kSum, ReduceScale::kMean}) {
      ShardSetting setting{.ranks = ranks, .stage = ZeroStage::kNone, .backend = "threads", .scale = scale};
      const Reduced expected = reduce_in_shards(shard_options(GetParam()), setting);
      for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kParameters}) {
        setting.stage = stage;
        const Reduced found = reduce_in_shards(shard_options(GetParam()), setting);
        expect_same(found, expected, text(ranks, " ranks, stage ", static_cast<int>(stage)));
        // The bucket of replicas also has an f32 flag.
        const std::int64_t flags = 3 * 2 * (ranks - 1) * 4 / ranks;
        EXPECT_NEAR(static_cast<double>(found.sent[0]), static_cast<double>(expected.sent[0] - flags), 3);
      }
    }
  }
}

/// Buckets of one parameter each, more than are in memory at a time.
TEST_P(ZeroWholeGradients, DoNotDependOnTheBuckets) {
  for (const char* backend : {"threads", "gloo", "shm"}) {
    const Reduced expected = reduce_in_shards(
        shard_options(GetParam()), {.stage = ZeroStage::kNone, .backend = backend, .bucket_mib = 1e-4});
    expect_same(reduce_in_shards(shard_options(GetParam()), {.backend = backend, .bucket_mib = 1e-4}),
                expected, backend);
  }
}

/// With stage 1 the gradients of micro-batches are added first, as on replicas.
TEST_P(ZeroWholeGradients, OfMicroBatchesAreThoseOfReplicas) {
  ShardSetting setting{.stage = ZeroStage::kNone, .backend = "threads", .microbatches = 2};
  const Reduced expected = reduce_in_shards(shard_options(GetParam()), setting);
  setting.stage = ZeroStage::kOptimizer;
  expect_same(reduce_in_shards(shard_options(GetParam()), setting), expected, "two micro-batches");
}

}  // namespace
}  // namespace trireme::parallel
