// The search for plans from known costs. It finds the result of an exhaustive search, keeps configured
// values, stays within the memory, and says why a plan lost.
#include "trireme/train/planner/plan_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/unit/train/known_costs.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/planner/internal/plan_space.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::ThrowsMessage;

MeasuredForms forms_of(const RunConfig& config, int ranks) { return {known_costs(config, ranks)}; }

PlanSearch search(const RunConfig& config, int ranks, const PlanSearchOptions& options = {}) {
  return search_plans(config, ranks, forms_of(config, ranks), options);
}

/// Every combination, without bounds.
std::vector<PlannedStep> all_plans(const RunConfig& config, int ranks, const MeasuredForms& measured) {
  std::vector<PlannedStep> plans;
  for (const PlanChoice& choice :
       plan_choices(config, {}, {.world_size = ranks, .ranks_of_host = 0, .layers = 4})) {
    try {
      plans.push_back(plan_step(with_choice(config, choice), ranks, measured));
    } catch (const InvalidArgument&) {  // the combination cannot run
    }
  }
  return plans;
}

double fastest_s(const std::vector<PlannedStep>& plans) {
  return std::ranges::min(plans, {}, &PlannedStep::step_s).step_s;
}

TEST(PlanSearch, FindsTheOptimumOfExhaustiveSearch) {
  for (const int ranks : {1, 2, 4}) {
    for (const double exchange_s : {0.01, 30.0}) {
      RunConfig config = without_clipping();
      config.train.global_batch = 32;
      MeasuredForms measured = forms_of(config, ranks);
      for (CostLine* line : {&measured[0].exchanges.all_reduce, &measured[0].exchanges.reduce_scatter,
                             &measured[0].exchanges.all_gather})
        line->unit_s = exchange_s / kMib;
      const PlanSearch found = search_plans(config, ranks, measured);
      double min_s = std::numeric_limits<double>::infinity();
      for (const PlanChoice& choice :
           plan_choices(config, {}, {.world_size = ranks, .ranks_of_host = 0, .layers = 4})) {
        try {
          min_s = std::min(min_s, plan_step(with_choice(config, choice), ranks, measured).step_s);
        } catch (const InvalidArgument&) {  // the combination cannot run
        }
      }
      EXPECT_LE(found.plans.front().step_s, min_s * 1.01) << ranks << " ranks, " << exchange_s;
      EXPECT_GE(found.plans.front().step_s, min_s) << ranks << " ranks, " << exchange_s;
    }
  }
}

TEST(PlanSearch, ChoosesStagesOnSlowLinks) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  MeasuredForms measured = forms_of(config, 2);
  measured[0].exchanges.all_reduce.unit_s = measured[0].exchanges.reduce_scatter.unit_s = 100 / kMib;
  EXPECT_EQ(search_plans(config, 2, measured).plans.front().config.parallel.pipeline, 2);
  measured[0].exchanges.all_reduce.unit_s = measured[0].exchanges.reduce_scatter.unit_s = 0;
  measured[0].exchanges.send = {.fixed_s = 1, .unit_s = 1 / kMib};
  EXPECT_EQ(search_plans(config, 2, measured).plans.front().config.parallel.pipeline, 1);
}

TEST(PlanSearch, BoundsExcludeOnlySlowPlans) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  for (const double overhead_s : {0.0, 0.5}) {
    MeasuredForms measured = forms_of(config, 4);
    measured[0].overhead.unit_s = overhead_s;
    const PlanSearch found = search_plans(config, 4, measured);
    const std::vector<PlannedStep> all = all_plans(config, 4, measured);
    const double limit_s = 3 * fastest_s(all);
    const auto is_within = [&](const PlannedStep& plan) { return plan.step_s <= limit_s; };
    EXPECT_EQ(std::ranges::count_if(found.plans, is_within), std::ranges::count_if(all, is_within));
  }
}

TEST(PlanSearch, CostsOfMicrobatchesRuleOutMany) {
  RunConfig config = without_clipping();
  config.train.global_batch = 4096;
  MeasuredForms measured = forms_of(config, 4);
  measured[0].overhead.unit_s = 10;
  const PlanSearch found = search_plans(config, 4, measured);
  for (const PlannedStep& plan : found.plans)
    EXPECT_LE(plan.ranks.front().seconds.overhead, 3 * found.plans.front().step_s);
}

TEST(PlanSearch, NamesTheFastestDataParallelPlan) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  MeasuredForms measured = forms_of(config, 4);
  measured[0].exchanges.all_reduce.unit_s = 1 / kMib;
  const PlanSearch found = search_plans(config, 4, measured);
  const PlannedStep* plan = found.data_parallel();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->config.parallel.data, 4);
  EXPECT_EQ(plan->config.parallel.zero, 0);
  config.parallel.pipeline = 2;
  EXPECT_EQ(search_plans(config, 4, measured).data_parallel(), nullptr);
}

TEST(PlanSearch, KeysThatAreConfiguredStay) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  config.parallel.zero = 2;
  config.parallel.pipeline = 2;
  for (const PlannedStep& plan : search(config, 4).plans) {
    EXPECT_EQ(plan.config.parallel.zero, 2);
    EXPECT_EQ(plan.config.parallel.pipeline, 2);
  }
}

TEST(PlanSearch, OfAStageRepeatsItsCuts) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  config.parallel.pipeline = 2;
  config.parallel.schedule = "gpipe";
  const PlannedStep best = search(config, 2).plans.front();
  ASSERT_EQ(best.config.parallel.cuts.size(), 1U);
  EXPECT_THAT(best.settings, Contains(Pair("parallel.pipeline", "2")));
  EXPECT_THAT(best.settings,
              Contains(Pair("parallel.cuts", text("[", best.config.parallel.cuts.front(), "]"))));
}

TEST(PlanSearch, RecomputesLayersWhereMemoryIsMissing) {
  RunConfig config = without_clipping();
  const PlanSearch free = search(config, 1);
  const PlannedStep& fastest = free.plans.front();
  const std::int64_t limit = fastest.memory_bytes - (12 << 20);
  config.train.accumulation = fastest.config.train.accumulation;
  const PlanSearch found = search(config, 1, {.limit_bytes = limit});
  ASSERT_FALSE(found.plans.empty());
  const PlannedStep& best = found.plans.front();
  EXPECT_LE(best.memory_bytes, limit);
  EXPECT_FALSE(best.config.train.recompute_layers.empty());
  EXPECT_THAT(best.config.train.recompute_layers, Not(Contains("*"))) << "some layers are enough";
  EXPECT_THAT(found.too_large, Contains(testing::Field(&PlannedStep::memory_bytes, fastest.memory_bytes)));
}

struct LittleMemory {
  LittleMemory() {
    config.optimizer.name = "adamw";
    config.offload.part_mib = 0.01;
    measured = forms_of(config, 1);
    const PlanSearch fixed = search_plans(config, 1, measured, {.limit_bytes = 1});
    smallest_bytes = fixed.too_large.front().memory_bytes;
  }
  PlanSearch search(std::int64_t limit_bytes) const {
    return search_plans(config, 1, measured, {.limit_bytes = limit_bytes});
  }
  RunConfig config = without_clipping();
  MeasuredForms measured;
  std::int64_t smallest_bytes = 0;  ///< of plans with all state in memory
};

TEST(PlanSearch, OffloadsStateWhereMemoryIsMissing) {
  LittleMemory little;
  EXPECT_TRUE(little.search(little.smallest_bytes - 1).plans.empty()) << "the time of files is not known";
  little.measured[0].update_in_files = {.fixed_s = 0, .unit_s = 3.0 / kNumel};
  const PlanSearch found = little.search(little.smallest_bytes - 1);
  ASSERT_FALSE(found.plans.empty());
  const PlannedStep& best = found.plans.front();
  EXPECT_LT(best.memory_bytes, little.smallest_bytes);
  EXPECT_THAT(best.settings, Contains(Pair("offload.optimizer", "\"files\"")));
  EXPECT_DOUBLE_EQ(best.busiest().seconds.update, 3);
  EXPECT_THAT(in_words(best.config, 1), HasSubstr("optimizer state in files"));
}

TEST(PlanSearch, KeepsStateInMemoryWhereItFits) {
  LittleMemory little;
  little.measured[0].update_in_files = {.fixed_s = 0, .unit_s = 3.0 / kNumel};
  const PlanSearch found = little.search(std::int64_t{1} << 40);
  for (const PlannedStep& plan : found.plans) EXPECT_EQ(plan.config.offload.optimizer, "none");
  EXPECT_EQ(found.plans.size(), search_plans(little.config, 1, forms_of(little.config, 1)).plans.size());
}

TEST(PlanSearch, OffloadsWhereRecomputationCostsMore) {
  LittleMemory little;
  const PlanSearch without = little.search(little.smallest_bytes);
  ASSERT_FALSE(without.plans.empty());
  little.measured[0].update_in_files = {.fixed_s = 0, .unit_s = 1.1 / kNumel};
  const PlanSearch with = little.search(little.smallest_bytes);
  EXPECT_LT(with.plans.front().step_s, without.plans.front().step_s);
  EXPECT_EQ(with.plans.front().config.offload.optimizer, "files");
  EXPECT_LE(with.plans.front().memory_bytes, little.smallest_bytes);
}

TEST(PlanSearch, LeavesConfiguredOffloadToConfiguration) {
  LittleMemory little;
  little.config.offload.optimizer = "files";
  const PlanSearch found = little.search(std::int64_t{1} << 40);
  for (const PlannedStep& plan : found.plans) {
    EXPECT_EQ(plan.config.offload.optimizer, "files");
    EXPECT_THAT(plan.settings, Not(Contains(testing::Key("offload.optimizer"))));
  }
}

TEST(PlanSearch, ProposesCodecsThatMakeAStepFaster) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  MeasuredForms measured = forms_of(config, 2);
  const CostLine &plain = measured[0].exchanges.all_reduce, slow{.fixed_s = 100, .unit_s = plain.unit_s};
  measured[0].exchanges.codecs = {{.codec = "bf16", .all_reduce = {.unit_s = plain.unit_s / 2}},
                                  {.codec = "int8", .all_reduce = {.unit_s = plain.unit_s / 10}},
                                  {.codec = "power-sgd", .all_reduce = slow}};
  config.parallel.pipeline = 1;
  config.parallel.data = 2;
  const PlanSearch found = search_plans(config, 2, measured);
  std::vector<std::string> codecs;
  for (const PlannedStep& plan : found.compressed) {
    codecs.push_back(plan.config.parallel.compression);
    EXPECT_LT(plan.step_s, found.plans.front().step_s);
    EXPECT_THAT(plan.settings, Contains(Pair("parallel.compression", text('"', codecs.back(), '"'))));
  }
  EXPECT_THAT(codecs, testing::ElementsAre("int8", "bf16"));
  for (const PlannedStep& plan : found.plans) EXPECT_EQ(plan.config.parallel.compression, "none");
  config.parallel.compression = "bf16";
  const PlanSearch configured = search_plans(config, 2, measured);
  EXPECT_THAT(configured.compressed, testing::IsEmpty());
  EXPECT_EQ(configured.plans.front().config.parallel.compression, "bf16");
}

TEST(PlanSearch, NoPlanExceedsTheMemory) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  for (const std::int64_t mib : {20, 40, 80}) {
    const PlanSearch found = search(config, 2, {.limit_bytes = mib << 20});
    EXPECT_THAT(found.plans, Each(testing::Field(&PlannedStep::memory_bytes, testing::Le(mib << 20)))) << mib;
    EXPECT_THAT(found.too_large, Each(testing::Field(&PlannedStep::memory_bytes, testing::Gt(mib << 20))))
        << mib;
  }
}

TEST(PlanSearch, TooLargePlansAreListedBySize) {
  const PlanSearch found = search(without_clipping(), 2, {.limit_bytes = 1 << 20});
  EXPECT_TRUE(found.plans.empty());
  ASSERT_GT(found.too_large.size(), 1U);
  EXPECT_TRUE(std::ranges::is_sorted(found.too_large, {}, &PlannedStep::memory_bytes));
  EXPECT_THAT(why_not(found.too_large.front(), found.too_large.front(), found.limit_bytes),
              AllOf(HasSubstr("needs "), HasSubstr(" more on rank ")));
}

TEST(PlanSearch, FrontierHasNoDominatedPlan) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  const PlanSearch found = search(config, 4);
  const auto frontier = found.frontier();
  ASSERT_FALSE(frontier.empty());
  for (const PlannedStep* on : frontier) {
    for (const PlannedStep& plan : found.plans)
      EXPECT_FALSE(plan.step_s < on->step_s && plan.memory_bytes < on->memory_bytes)
          << in_words(plan.config, 4) << " beats " << in_words(on->config, 4);
  }
}

TEST(PlanSearch, SaysWhichPartMakesAPlanSlower) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  MeasuredForms measured = forms_of(config, 2);
  const PlannedStep replicas = plan_step(config, 2, measured);
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 2;
  config.parallel.schedule = "gpipe";
  const PlannedStep stages = plan_step(config, 2, measured);
  EXPECT_THAT(why_not(stages, replicas, 0), AllOf(HasSubstr("slower"), HasSubstr("bubbles")));
  measured[0].exchanges.all_reduce.unit_s = 100 / kMib;
  config.parallel.pipeline = 1;
  EXPECT_THAT(why_not(plan_step(config, 2, measured), stages, 0),
              AllOf(HasSubstr("slower"), HasSubstr("exchanges take")));
}

TEST(PlanSearch, EndsWhenItIsToldTo) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  const PlanSearch found = search(config, 4, {.is_over = [] { return true; }});
  EXPECT_FALSE(found.is_complete);
  EXPECT_FALSE(found.plans.empty()) << "one plan at the least";
}

TEST(PlanSearch, EndsInTimeWhereNothingFits) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  const PlanSearch whole = search(config, 2, {.limit_bytes = 1});
  const PlanSearch found = search(config, 2, {.limit_bytes = 1, .is_over = [] { return true; }});
  EXPECT_FALSE(found.is_complete);
  EXPECT_LT(found.estimated, 4);
  EXPECT_GT(whole.estimated, 40);
}

TEST(PlanSearch, OfFewerSamplesThanRanksHasPlans) {
  RunConfig config = without_clipping();
  const MeasuredForms measured = forms_of(config, 4);
  config.train.global_batch = 2;
  const PlanSearch found = search_plans(config, 4, measured);
  ASSERT_FALSE(found.plans.empty());
  for (const PlannedStep& plan : found.plans) EXPECT_LE(plan.config.parallel.data, 2);
}

TEST(PlanSearch, FixedReplicasStay) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  const MeasuredForms measured = forms_of(config, 4);
  config.parallel.data = 2;
  const PlanSearch found = search_plans(config, 4, measured);
  ASSERT_FALSE(found.plans.empty());
  for (const PlannedStep& plan : found.plans) EXPECT_EQ(plan.config.parallel.pipeline, 2);
}

TEST(PlanSpace, ShardGroupsAreCopiesWithinHost) {
  RunConfig config = config_of_four();
  config.train.global_batch = 64;
  const auto groups = [&](std::int64_t tensor, int ranks_of_host) {
    std::set<std::int64_t> sizes;
    for (const PlanChoice& choice : plan_choices(
             config, {.tensor = tensor}, {.world_size = 32, .ranks_of_host = ranks_of_host, .layers = 2})) {
      if (choice.pipeline == 2) sizes.insert(choice.shard_ranks);
    }
    return sizes;
  };
  // The pipeline is the outermost axis, so copies of a stage are neighbors.
  EXPECT_THAT(groups(1, 8), testing::ElementsAre(0, 8));
  EXPECT_THAT(groups(2, 8), testing::ElementsAre(0, 4));
  EXPECT_THAT(groups(1, 2), testing::ElementsAre(0, 2));
  EXPECT_THAT(groups(1, 16), testing::ElementsAre(0)) << "all copies";
}

TEST(PlanSearch, RejectsAsynchronousStages) {
  RunConfig config = without_clipping();
  config.parallel.schedule = "pipedream";
  config.parallel.pipeline = 2;
  EXPECT_THAT([&] { search(config, 2); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("\"pipedream\""), HasSubstr("with a flush"))));
}

TEST(PlannedKeys, AreTheSameAfterAText) {
  RunConfig config;
  config.parallel.pipeline = 2;
  config.parallel.cuts = {3};
  config.train.recompute_layers = {"a", "b"};
  config.parallel.keep_gradients = true;
  const std::string written = to_toml(planned_settings(config));
  const RunConfig read = with_settings({}, parse_settings(written, "plan.toml"), "plan.toml");
  EXPECT_EQ(describe(read), describe(config));
}

TEST(PlannedKeys, ThatAreLeftOutGetTheirDefaults) {
  RunConfig config;
  config.parallel.pipeline = 4;
  config.run.name = "mine";
  config.offload.optimizer = "files";
  const RunConfig changed = with_settings(config, {{"parallel.zero", "1"}}, "plan.toml");
  EXPECT_EQ(changed.offload.optimizer, "files") << "a plan only adds offloading";
  EXPECT_EQ(changed.parallel.pipeline, 1);
  EXPECT_EQ(changed.parallel.zero, 1);
  EXPECT_EQ(changed.run.name, "mine");
}

TEST(PlannedKeys, OfAForeignFileAreChecked) {
  const auto read = [](const std::string& content) {
    return [content] { with_settings({}, parse_settings(content, "plan.toml"), "plan.toml"); };
  };
  EXPECT_THAT(read("[run]\nfolder = \"/etc\"\n"),
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("plan.toml"), HasSubstr("'run.folder'"))));
  EXPECT_THAT(read("[parallel]\nzero = 9\n"), ThrowsMessage<InvalidArgument>(HasSubstr("parallel.zero")));
  EXPECT_THAT(read("[parallel]\nzero = \n"), ThrowsMessage<InvalidArgument>(HasSubstr("plan.toml:2")));
  EXPECT_THAT(read("zero = 1\n"), ThrowsMessage<InvalidArgument>(HasSubstr("expected tables")));
}

}  // namespace
}  // namespace trireme::train
