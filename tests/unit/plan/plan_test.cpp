#include "trireme/plan/plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "tests/unit/plan/random_layers.h"
#include "trireme/base/error.h"
#include "trireme/plan/chain_cuts.h"

namespace trireme::plan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Profile random_chain(std::size_t num_layers, std::mt19937& random) {
  const std::vector<Layer> layers = random_layers(num_layers, random);
  return Profile(std::span(layers));
}

struct Search {
  const Profile& profile;
  double bandwidth;
  bool counts_links;
};

/// The minimum over all cuts and all assignments of workers of the time of the slowest stage or link.
double best_of_all_pipelines(const Search& search, std::size_t from, std::size_t workers) {
  const Profile& profile = search.profile;
  double best = kInfinity;
  for (std::size_t to = from + 1; to <= profile.last_cut(); ++to) {
    const Work work = profile.between(from, to);
    const bool is_last = to == profile.last_cut();
    const double link_s = search.counts_links ? 2 * profile.output_bytes(to) / search.bandwidth : 0;
    for (std::size_t m = is_last ? workers : 1; m <= workers; ++m) {
      if (!is_last && m == workers) continue;
      const auto n = static_cast<double>(m);
      const double stage_s =
          (work.compute_s + 4 * (n - 1) * work.parameter_bytes / (search.bandwidth * n)) / n;
      const double rest_s = is_last ? 0 : best_of_all_pipelines(search, to, workers - m);
      best = std::min(best, std::max({stage_s, link_s, rest_s}));
    }
  }
  return best;
}

class PipedreamMethod : public testing::TestWithParam<std::string> {};

TEST_P(PipedreamMethod, IsBestPipelineOnOneLevel) {
  std::mt19937 random(11);
  const bool counts_links = GetParam() == "pipedream-links";
  for (std::size_t num_layers = 1; num_layers <= 6; ++num_layers) {
    const Profile profile = random_chain(num_layers, random);
    for (std::size_t workers = 1; workers <= 6; ++workers) {
      for (const double bandwidth : {20.0, 200.0}) {
        const Plan plan = make_plan(profile, {.levels = {{workers, bandwidth}}}, GetParam());
        const double time_s =
            counts_links ? std::max(plan.pipeline_time_s, plan.transfer_time_s) : plan.pipeline_time_s;
        EXPECT_DOUBLE_EQ(time_s, best_of_all_pipelines({profile, bandwidth, counts_links}, 0, workers))
            << num_layers << " layers, " << workers << " workers, " << bandwidth;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plan, PipedreamMethod, testing::Values("pipedream", "pipedream-links"),
                         [](const auto& test) { return test.index == 0 ? "LinksFree" : "LinksCounted"; });

TEST(PipedreamPlan, StraightOnOneLevelIsBestCut) {
  std::mt19937 random(13);
  for (std::size_t num_layers = 1; num_layers <= 12; ++num_layers) {
    const Profile profile = random_chain(num_layers, random);
    for (std::size_t workers = 1; workers <= num_layers; ++workers) {
      const PlanOptions options = {.levels = {{workers, kInfinity}}, .straight = true};
      const Plan straight = make_plan(profile, options, "pipedream");
      EXPECT_EQ(straight.stages.size(), workers);
      EXPECT_DOUBLE_EQ(straight.pipeline_time_s, make_plan(profile, options, "time").pipeline_time_s);
    }
  }
}

TEST(PipedreamPlan, StraightWithLinksIsBestByTime) {
  std::mt19937 random(31);
  for (std::size_t workers = 1; workers <= 8; ++workers) {
    const Profile profile = random_chain(10, random);
    const PlanOptions options = {.levels = {{workers, 12}}, .straight = true};
    const Plan straight = make_plan(profile, options, "pipedream-links");
    const Plan by_time = make_plan(profile, options, "time");
    EXPECT_DOUBLE_EQ(std::max(straight.pipeline_time_s, straight.transfer_time_s),
                     std::max(by_time.pipeline_time_s, by_time.transfer_time_s));
  }
}

TEST(PipedreamPlan, LevelOfOneWorkerChangesNothing) {
  std::mt19937 random(17);
  const Profile profile = random_chain(8, random);
  const Plan flat = make_plan(profile, {.levels = {{4, 30}}}, "pipedream");
  const Plan inner = make_plan(profile, {.levels = {{1, 7}, {4, 30}}}, "pipedream");
  const Plan outer = make_plan(profile, {.levels = {{4, 30}, {1, 7}}}, "pipedream");
  EXPECT_DOUBLE_EQ(inner.pipeline_time_s, flat.pipeline_time_s);
  EXPECT_DOUBLE_EQ(outer.pipeline_time_s, flat.pipeline_time_s);
  EXPECT_DOUBLE_EQ(inner.data_parallel_time_s, flat.data_parallel_time_s);
  EXPECT_DOUBLE_EQ(outer.data_parallel_time_s, flat.data_parallel_time_s);
}

TEST(PipedreamPlan, CutsBranchesOnlyBetweenConsecutiveStages) {
  const Profile profile = parse_profile(
      "state,antichain,cum_compute_s,cum_activation_bytes,cum_parameter_bytes,output_activation_bytes,"
      "predecessor_states\n"
      "0,a,1,0,0,0,\n1,b|a,2,0,0,0,0\n2,a|c,11,0,0,0,0\n3,b|c,12,0,0,0,1 2\n4,d,13,0,0,0,3\n");
  // Cuts after states 1 and 2 would give stages of 2, 9 and 2 seconds, but c takes 10.
  for (const char* method : {"pipedream", "time"}) {
    const Plan plan = make_plan(profile, {.levels = {{3, 1}}, .straight = true}, method);
    EXPECT_DOUBLE_EQ(plan.pipeline_time_s, 10);
    for (std::size_t i = 1; i < plan.stages.size(); ++i)
      EXPECT_TRUE(profile.is_before(plan.stages[i].first_state, plan.stages[i].last_state + 1));
  }
}

class EveryMethod : public testing::TestWithParam<std::string> {};

TEST_P(EveryMethod, IsNoSlowerWithFasterLinks) {
  std::mt19937 random(19);
  for (int chain = 0; chain < 20; ++chain) {
    const Profile profile = random_chain(10, random);
    double slower = kInfinity;
    for (const double factor : {1.0, 2.0, 8.0, 64.0, 1e6}) {
      const PlanOptions options = {.levels = {{2, 8 * factor}, {3, 3 * factor}}};
      const Plan plan = make_plan(profile, options, GetParam());
      const bool counts_links = GetParam() != "pipedream";
      const double time_s =
          counts_links ? std::max(plan.pipeline_time_s, plan.transfer_time_s) : plan.pipeline_time_s;
      EXPECT_LE(time_s, slower) << "chain " << chain << " factor " << factor;
      slower = time_s;
    }
  }
}

TEST_P(EveryMethod, CoversTheModelAndUsesEveryWorker) {
  std::mt19937 random(23);
  for (int chain = 0; chain < 10; ++chain) {
    const Profile profile = random_chain(12, random);
    const PlanOptions options = {.levels = {{2, 500}, {2, 300}, {2, 100}}};
    const Plan plan = make_plan(profile, options, GetParam());
    std::size_t next = 0, workers = 0;
    double compute_s = 0, slowest_s = 0;
    for (const Stage& stage : plan.stages) {
      EXPECT_EQ(stage.first_state, next);
      next = stage.last_state + 1;
      workers += stage.replicas;
      compute_s += stage.work.compute_s;
      slowest_s = std::max(slowest_s, stage.time_s);
    }
    EXPECT_EQ(next, profile.num_states());
    EXPECT_EQ(workers, num_workers(options));
    EXPECT_NEAR(compute_s, profile.between(0, profile.last_cut()).compute_s, 1e-12);
    EXPECT_DOUBLE_EQ(plan.pipeline_time_s, slowest_s);
  }
}

INSTANTIATE_TEST_SUITE_P(Plan, EveryMethod, testing::ValuesIn(partitioner_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(TimePlan, IsCutOfChainOnOneLevel) {
  std::mt19937 random(29);
  const std::vector<Layer> layers = random_layers(12, random);
  const Plan plan = make_plan(Profile(std::span(layers)), {.levels = {{5, 4}}}, "time");
  const auto cuts = cut_chain(layers, {.num_stages = 5, .bandwidth_bytes_per_s = 4});
  ASSERT_EQ(plan.stages.size(), 5u);
  for (std::size_t i = 0; i < cuts.size(); ++i) EXPECT_EQ(plan.stages[i + 1].first_state, cuts[i]);
}

TEST(TimePlan, CountsLinkOfLevelBetweenStages) {
  std::vector<Layer> layers(4, {.name = "l", .forward_s = 1, .output_bytes = 10});
  const Plan plan = make_plan(Profile(std::span<const Layer>(layers)), {.levels = {{2, 10}, {2, 5}}}, "time");
  ASSERT_EQ(plan.stages.size(), 4u);
  EXPECT_DOUBLE_EQ(plan.stages[0].transfer_s, 2);
  EXPECT_DOUBLE_EQ(plan.stages[1].transfer_s, 4);
  EXPECT_DOUBLE_EQ(plan.stages[2].transfer_s, 2);
  EXPECT_DOUBLE_EQ(plan.stages[3].transfer_s, 0);
}

TEST(SimplePlans, SpreadLayersOrParameters) {
  std::vector<Layer> layers(6, {.name = "l", .forward_s = 1, .parameter_bytes = 1});
  layers[5].parameter_bytes = 5;
  const Profile profile{std::span<const Layer>(layers)};
  const PlanOptions options = {.levels = {{2, 1}}};
  EXPECT_EQ(make_plan(profile, options, "uniform").stages[1].first_state, 3u);
  EXPECT_EQ(make_plan(profile, options, "parameters").stages[1].first_state, 5u);
}

TEST(MakePlan, RejectsInvalidOptions) {
  std::vector<Layer> layers(3, {.name = "l", .forward_s = 1});
  const Profile profile{std::span<const Layer>(layers)};
  const auto refused = [&](const PlanOptions& options, const std::string& method, const char* message) {
    EXPECT_THAT([&] { make_plan(profile, options, method); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused({.levels = {{2, 1}}}, "pipedraem",
          "unknown partitioning method 'pipedraem' (did you mean 'pipedream'?)");
  refused({}, "time", "at least one level of workers");
  refused({.levels = {{2, 1}, {0, 1}}}, "time", "level 2 has 0 workers");
  refused({.levels = {{64, 1}, {65, 1}}}, "pipedream", "more than 4096 workers");
  refused({.levels = {{2, 0}}}, "time", "level 1 has a bandwidth of 0 bytes per second");
  refused({.levels = {{2, std::numeric_limits<double>::quiet_NaN()}}}, "time", "a bandwidth of nan");
  refused({.levels = {{2, 1}, {2, 1}}}, "uniform", "makes 4 stages, but the profile has 3 layers");
  refused({.levels = {{4, 1}}, .straight = true}, "pipedream",
          "makes 4 stages, but the profile has 3 layers");
  EXPECT_EQ(make_plan(profile, {.levels = {{4, 1}}}, "pipedream").stages.size(), 1u) << "replicas";
}

TEST(ParseLevels, PairsTheTwoLists) {
  const std::vector<Level> levels = parse_levels("4,2", "1e10, 1.25e9");
  ASSERT_EQ(levels.size(), 2u);
  EXPECT_EQ(levels[0].num_workers, 4u);
  EXPECT_DOUBLE_EQ(levels[1].bandwidth_bytes_per_s, 1.25e9);
}

TEST(ParseLevels, RejectsMalformedLists) {
  const auto refused = [](const char* workers, const char* bandwidths, const char* message) {
    EXPECT_THAT([&] { parse_levels(workers, bandwidths); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused("4,2", "1e9", "found 2 level(s) of workers ('4,2') and 1 bandwidth(s) ('1e9')");
  refused("-4", "1e9", "workers: found '-4' in '-4', expected whole numbers from 1");
  refused("4,,2", "1,1,1", "workers: found '' in '4,,2'");
  refused("4", "10G", "bandwidth: found '10G' in '10G', expected bytes per second");
}

}  // namespace
}  // namespace trireme::plan
