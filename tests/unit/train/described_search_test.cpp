// The plan search on a described machine. Bounds never exceed an estimate, and the best plan is that of an
// exhaustive search.
#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/train/machine/described_forms.h"
#include "trireme/train/plan/internal/plan_maker.h"
#include "trireme/train/planner/internal/plan_bound.h"
#include "trireme/train/planner/internal/plan_work.h"
#include "trireme/train/planner/plan_search.h"

namespace trireme::train {
namespace {

Machine small_machine() {
  return {.name = "small",
          .device = {.name = "d",
                     .peak_flop_s = {{"fp32", 1e12}, {"bf16", 8e12}},
                     .product_share = 0.8,
                     .memory_bytes = 1e12,
                     .memory_bytes_per_s = 2e11},
          .hosts = 4,
          .ranks_of_host = 2,
          .links = {.ranks_of_host = 2,
                    .within = {.latency_s = 2e-6, .bytes_per_s = 5e10},
                    .between = {.latency_s = 1e-5, .bytes_per_s = 2e9}}};
}

RunConfig small_gpt(const std::string& precision = "fp32") {
  RunConfig config;
  config.data.name = "text";
  config.data.block = 32;
  config.model.name = "gpt";
  config.model.layers = 6;
  config.model.heads = 4;
  config.model.width = 64;
  config.train.global_batch = 16;
  config.train.precision = precision;
  config.train.clip_norm = 0;
  config.optimizer.name = "adamw";
  return config;
}

struct Tried {
  PlanChoice choice;
  const Measurements* costs;
  PlannedStep step;
};

/// Every valid combination, without bounds.
std::vector<Tried> all_tried(const RunConfig& config, int ranks, const MeasuredForms& forms) {
  std::vector<Tried> tried;
  MadeSchedules schedules;
  std::size_t at = 0;
  for (const ModelForm& form : model_forms(config, ranks)) {
    if (form.tensor > config.model.heads || 2 * form.context > config.data.block) continue;
    const Measurements& costs = forms.at(at++);
    const SpaceOptions space{.world_size = ranks,
                             .ranks_of_host = costs.ranks_of_host,
                             .layers = std::ssize(costs.costs.front().layers) - 1};
    for (const PlanChoice& choice : plan_choices(config, form, space)) {
      try {
        tried.push_back({choice, &costs, plan_step(with_choice(config, choice), ranks, forms, schedules)});
      } catch (const InvalidArgument&) {  // the combination cannot run
      }
    }
  }
  return tried;
}

TEST(PlanBounds, NeverExceedTheEstimate) {
  std::size_t num_tried = 0;
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const int ranks : {4, 8}) {
      const RunConfig config = small_gpt(precision);
      const MeasuredForms forms = described_forms(config, ranks, small_machine(), 101);
      MadeSchedules schedules;
      PlanBounds bounds(config, ranks, std::int64_t{1} << 40, schedules);
      for (const Tried& each : all_tried(config, ranks, forms)) {
        const PlanBound loose = bounds.loose(each.choice, *each.costs);
        const PlanBound tight = bounds.tight(each.choice, *each.costs);
        const std::string words = text(in_words(each.step.config, ranks), " on ", ranks, ", ", precision);
        EXPECT_LE(loose.step_s, tight.step_s) << words;
        EXPECT_LE(tight.step_s, each.step.step_s * (1 + 1e-9)) << words;
        EXPECT_LE(tight.memory_bytes, static_cast<double>(each.step.memory_bytes) * (1 + 1e-9)) << words;
        ++num_tried;
      }
    }
  }
  EXPECT_GT(num_tried, 1000U);
}

TEST(PlanBounds, RecomputedLayersNeverExceedEstimate) {
  const RunConfig config = small_gpt();
  const MeasuredForms forms = described_forms(config, 4, small_machine(), 101);
  const std::vector<Tried> all = all_tried(config, 4, forms);
  std::int64_t limit = all.front().step.memory_bytes;
  for (const Tried& each : all) limit = std::min(limit, each.step.memory_bytes);
  limit += limit / 8;
  MadeSchedules schedules;
  PlanBounds bounds(config, 4, limit, schedules);
  std::size_t num_recomputed = 0;
  for (const Tried& each : all) {
    RunConfig recomputed = each.step.config;
    recomputed.train.recompute_layers = {"*"};
    const PlannedStep least = plan_step(recomputed, 4, forms, schedules);
    const PlanBound tight = bounds.tight(each.choice, *each.costs);
    EXPECT_LE(tight.memory_bytes, static_cast<double>(least.memory_bytes) * (1 + 1e-9));
    if (least.memory_bytes > limit) continue;
    EXPECT_LE(tight.step_s, least.step_s * (1 + 1e-9)) << in_words(each.step.config, 4);
    ++num_recomputed;
  }
  EXPECT_GT(num_recomputed, 10U);
}

TEST(DescribedSearch, FindsTheOptimumOfExhaustiveSearch) {
  for (const int ranks : {4, 8}) {
    const RunConfig config = small_gpt();
    const MeasuredForms forms = described_forms(config, ranks, small_machine(), 101);
    double min_s = std::numeric_limits<double>::infinity();
    for (const Tried& each : all_tried(config, ranks, forms)) min_s = std::min(min_s, each.step.step_s);
    const PlanSearch found =
        search_plans(config, ranks, forms, {.limit_bytes = std::int64_t{1} << 40, .alternatives = 1.02});
    ASSERT_FALSE(found.plans.empty());
    EXPECT_LE(found.plans.front().step_s, min_s * 1.01) << ranks << " ranks: of those as fast the simplest";
    EXPECT_GE(found.plans.front().step_s, min_s) << ranks << " ranks";
    EXPECT_GT(found.bounded, 0) << "bounds rule something out";
  }
}

TEST(DescribedSearch, MatchesExhaustiveSearchWithinMemory) {
  RunConfig config = small_gpt();
  config.train.recompute_layers = {"block 0"};  // layers are named, so none are chosen
  const MeasuredForms forms = described_forms(config, 8, small_machine(), 101);
  const std::vector<Tried> all = all_tried(config, 8, forms);
  std::vector<std::int64_t> bytes;
  for (const Tried& each : all) bytes.push_back(each.step.memory_bytes);
  std::ranges::sort(bytes);
  const std::int64_t limit = bytes[bytes.size() / 10];
  double min_s = std::numeric_limits<double>::infinity();
  for (const Tried& each : all) {
    if (each.step.memory_bytes <= limit) min_s = std::min(min_s, each.step.step_s);
  }
  const PlanSearch found = search_plans(config, 8, forms, {.limit_bytes = limit, .alternatives = 1.02});
  ASSERT_FALSE(found.plans.empty());
  EXPECT_LE(found.plans.front().step_s, min_s * 1.01);
  EXPECT_LE(found.plans.front().memory_bytes, limit);
}

TEST(DescribedSearch, TooLargePlansAreListed) {
  const RunConfig config = small_gpt();
  const PlanSearch found =
      search_plans(config, 8, described_forms(config, 8, small_machine(), 101), {.limit_bytes = 1000});
  EXPECT_TRUE(found.plans.empty());
  EXPECT_FALSE(found.too_large.empty());
}

TEST(MadeSchedules, MatchTableAndAreSearchedOnce) {
  MadeSchedules schedules;
  const ScheduleSize size{.ranks = 4, .microbatches = 6};
  for (const char* name : {"zb-1p", "v-half"}) {
    EXPECT_TRUE(schedules.has_to_search(name, size)) << name;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(schedules.make(name, size).ranks,
                schedule::make_schedule(name, {.num_ranks = 4, .num_microbatches = 6}).ranks)
          << name;
      EXPECT_FALSE(schedules.has_to_search(name, size)) << name;
    }
    EXPECT_TRUE(schedules.has_to_search(name, {.ranks = 4, .microbatches = 8})) << name;
  }
  EXPECT_FALSE(schedules.has_to_search("1f1b", size));
  EXPECT_FALSE(schedules.has_to_search("plan.csv", size));
}

TEST(PlanWork, IsThatOfThePlansPrograms) {
  const RunConfig config = small_gpt();
  const MeasuredForms forms = described_forms(config, 4, small_machine(), 101);
  MadeSchedules schedules;
  for (const Tried& each : all_tried(config, 4, forms)) {
    const ParallelPlan plan = make_plan(each.step.config, 4, std::nullopt, &schedules);
    std::int64_t actions = 0;
    for (const auto& spans : estimate(plan, *each.costs, WeightsMemory::kOwn).timeline.spans)
      actions += std::ssize(spans);
    const std::int64_t layers = config.model.layers, work = work_of_estimate(each.step.config, layers + 2);
    EXPECT_GE(work, actions + layers) << in_words(each.step.config, 4);
    EXPECT_LE(work, 4 * actions + 40 * layers) << in_words(each.step.config, 4);
  }
}

TEST(PlanWork, GrowsWithLayersAndWithMicrobatches) {
  RunConfig config = small_gpt();
  config.parallel.zero = 3;
  config.train.accumulation = 1000;
  const double work = static_cast<double>(work_of_estimate(config, 8));
  EXPECT_NEAR(static_cast<double>(work_of_estimate(config, 16)), 2 * work, 0.01 * work);
  config.train.accumulation = 2000;
  EXPECT_NEAR(static_cast<double>(work_of_estimate(config, 8)), 2 * work, 0.01 * work);
}

TEST(DescribedSearch, EndsWithinItsWork) {
  const RunConfig config = small_gpt();
  const MeasuredForms forms = described_forms(config, 4, small_machine(), 101);
  const PlanSearch whole = search_plans(config, 4, forms, {.limit_bytes = std::int64_t{1} << 40});
  EXPECT_TRUE(whole.is_complete);
  for (const std::int64_t share : {2, 10, 100}) {
    const std::int64_t limit = whole.work / share;
    const PlanSearch found =
        search_plans(config, 4, forms, {.limit_bytes = std::int64_t{1} << 40, .max_work = limit});
    EXPECT_LE(found.work, limit);
    EXPECT_FALSE(found.is_complete);
    EXPECT_LT(found.estimated, whole.estimated);
    ASSERT_FALSE(found.plans.empty());
    EXPECT_GE(found.plans.front().step_s, whole.plans.front().step_s / 1.01);
  }
  const PlanSearch again =
      search_plans(config, 4, forms, {.limit_bytes = std::int64_t{1} << 40, .max_work = 8 * whole.work});
  EXPECT_TRUE(again.is_complete);
  EXPECT_EQ(again.work, whole.work);
  EXPECT_EQ(again.plans.front().settings, whole.plans.front().settings);
}

TEST(DescribedSearch, LargeBatchOmitsLongPrograms) {
  RunConfig config = small_gpt();
  config.train.global_batch = 1 << 20;
  constexpr std::int64_t kLimit = 2'000'000;
  const PlanSearch found =
      search_plans(config, 8, described_forms(config, 8, small_machine(), 101),
                   {.limit_bytes = std::int64_t{1} << 40, .alternatives = 1.02, .max_work = kLimit});
  EXPECT_LE(found.work, kLimit);
  EXPECT_FALSE(found.is_complete);
  EXPECT_FALSE(found.plans.empty());
}

TEST(DescribedSearch, WithoutWorkEstimatesOnePlan) {
  const RunConfig config = small_gpt();
  const PlanSearch found = search_plans(config, 8, described_forms(config, 8, small_machine(), 101),
                                        {.limit_bytes = std::int64_t{1} << 40, .max_work = 1});
  EXPECT_EQ(found.plans.size(), 1U);
  EXPECT_FALSE(found.is_complete);
}

TEST(DescribedSearch, IsTheSameAgain) {
  const RunConfig config = small_gpt();
  const MeasuredForms forms = described_forms(config, 8, small_machine(), 101);
  const PlanSearch one = search_plans(config, 8, forms), two = search_plans(config, 8, forms);
  ASSERT_EQ(one.plans.size(), two.plans.size());
  for (std::size_t i = 0; i < one.plans.size(); ++i) {
    EXPECT_EQ(one.plans[i].settings, two.plans[i].settings);
    EXPECT_EQ(one.plans[i].step_s, two.plans[i].step_s);
  }
}

}  // namespace
}  // namespace trireme::train
