// Costs over links that a file gives in place of those that were measured.
#include <gmock/gmock.h>

#include "tests/unit/train/known_costs.h"
#include "trireme/base/error.h"
#include "trireme/train/planner/plan_search.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr LinkFacts kFast{.latency_s = 0, .bytes_per_s = 1e12}, kSlow{.latency_s = 0, .bytes_per_s = 1e6};

RunConfig replicas() {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  return config;
}

/// Measured by one rank, which has exchanged nothing.
MeasuredForms of_one_rank(const RunConfig& config) {
  Measurements measured = known_costs(config);
  measured.exchanges = {};
  return {measured};
}

TEST(GivenLinks, ReplaceTheMeasuredRates) {
  const RunConfig config = replicas();
  const MeasuredForms measured = {known_costs(config, 2)};
  const double s_of_measured = plan_step(config, 2, measured).step_s;
  const auto step_s = [&](const LinkFacts& link) {
    return plan_step(config, 2, over_links(measured, {.ranks_of_host = 2, .within = link, .between = {}}, 2))
        .step_s;
  };
  EXPECT_LT(step_s(kFast), s_of_measured);
  EXPECT_GT(step_s(kSlow), s_of_measured);
}

TEST(GivenLinks, CostsOfOneRankServeMore) {
  const RunConfig config = replicas();
  EXPECT_THROW(plan_step(config, 4, of_one_rank(config)), InvalidArgument);
  const MeasuredForms given =
      over_links(of_one_rank(config), {.ranks_of_host = 2, .within = kFast, .between = kFast}, 4);
  EXPECT_GT(plan_step(config, 4, given).step_s, 0);
}

TEST(GivenLinks, SlowLinksChangeTheFastestPlan) {
  const RunConfig config = replicas();
  Measurements measured = known_costs(config, 2);
  for (ModelUse& model : measured.costs) {
    for (LayerUse& layer : model.layers) layer.memory.kept.output_bytes = 1024;
  }
  const auto best = [&](const LinkFacts& link) {
    const MeasuredForms given =
        over_links({measured}, {.ranks_of_host = 1, .within = {}, .between = link}, 2);
    return search_plans(config, 2, given).plans.front().config.parallel.pipeline;
  };
  EXPECT_EQ(best(kFast), 1);
  EXPECT_EQ(best(kSlow), 2) << "activations are smaller than gradients";
}

TEST(GivenLinks, RanksFillWholeHosts) {
  const RunConfig config = replicas();
  EXPECT_THAT([&] { over_links({}, {.ranks_of_host = 2, .within = kFast, .between = kFast}, 3); },
              ThrowsMessage<InvalidArgument>(HasSubstr("3 ranks on hosts of 2; expected whole hosts")));
}

TEST(GivenLinks, PartsOfLayersStayWithinHosts) {
  MeasuredForms measured(2, known_costs(replicas(), 4));
  const std::string whole = "parallel.tensor = 1\n";
  const std::size_t at = measured.back().model.find(whole);
  ASSERT_NE(at, std::string::npos);
  measured.back().model.replace(at, whole.size(), "parallel.tensor = 2\n");
  const auto forms = [&](int ranks_of_host) {
    return over_links(measured, {.ranks_of_host = ranks_of_host, .within = kFast, .between = kSlow}, 4)
        .size();
  };
  EXPECT_EQ(forms(2), 2U) << "as measured here";
  EXPECT_EQ(forms(1), 1U);
  EXPECT_EQ(forms(4), 1U) << "the given links are those within the host";
  measured.erase(measured.begin());
  EXPECT_THAT([&] { forms(1); }, ThrowsMessage<InvalidArgument>(HasSubstr("leave these keys out")));
}

TEST(GivenLinks, FixedPartsWithoutCostsAreNamed) {
  const MeasuredForms given =
      over_links({known_costs(replicas(), 2)}, {.ranks_of_host = 2, .within = kFast, .between = {}}, 2);
  RunConfig config = replicas();
  config.parallel.tensor = 2;
  EXPECT_THAT([&] { search_plans(config, 2, given); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no layers in as many parts as parallel.tensor")));
}

TEST(GivenLinks, HostsDoNotShareWeights) {
  RunConfig config = replicas();
  config.parallel.zero = 1;
  config.comm.backend = "shm";
  const auto planned = [&](int ranks_of_host) {
    const MeasuredForms given = over_links(
        {known_costs(config, 2)}, {.ranks_of_host = ranks_of_host, .within = kFast, .between = kSlow}, 2);
    return plan_step(config, 2, given);
  };
  const PlannedStep together = planned(2), apart = planned(1);
  EXPECT_LT(together.memory_bytes, apart.memory_bytes);
}

TEST(MeasuredHosts, DoNotShareWeights) {
  RunConfig config = replicas();
  config.parallel.zero = 1;
  config.comm.backend = "shm";
  MeasuredForms measured = {known_costs(config, 2)};
  const PlannedStep together = plan_step(config, 2, measured);
  measured[0].ranks_of_host = 1;
  const PlannedStep apart = plan_step(config, 2, measured);
  EXPECT_LT(together.memory_bytes, apart.memory_bytes);
  EXPECT_LT(together.step_s, apart.step_s) << "weights are gathered";
}

}  // namespace
}  // namespace trireme::train
