// parallel.plan = "auto": a run chooses its plan and records it. A resume on as many ranks keeps it.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/planner/measure_forms.h"
#include "trireme/train/planner/plan_search.h"
#include "trireme/train/planner/planned_keys.h"
#include "trireme/train/run/fastest_plan.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

class PlannedRuns : public SmallRuns {
 protected:
  PlannedRuns() { ::setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), /*overwrite=*/1); }
  ~PlannedRuns() override { ::unsetenv("XDG_CACHE_HOME"); }

  RunConfig planned(const std::string& name) const {
    RunConfig result = config(name);
    result.parallel.plan = "auto";
    return result;
  }
  RunConfig resumed(const std::string& name) const {
    RunConfig result = planned(name);
    result.train.max_steps = 16;
    return result;
  }
  std::filesystem::path costs() const { return folder_ / "cache" / "trireme" / "costs"; }
};

TEST_F(PlannedRuns, WritePlanAndKeepConfigurationOpen) {
  const RunResult result = run(2, planned("auto"));
  EXPECT_EQ(result.status, "completed");
  const std::string plan = file("auto", "plan.toml");
  EXPECT_THAT(plan, AllOf(HasSubstr("[parallel]"), HasSubstr("planned_step_s = ")));
  const RunConfig written = parse_run_config(file("auto", "config.toml"), "config.toml");
  EXPECT_EQ(written.parallel.plan, "auto");
  EXPECT_TRUE(planned_settings(written).empty()) << "a resume on other ranks may choose all keys again";
  EXPECT_THAT(file("auto", "console.log"), HasSubstr("plan: "));
}

TEST_F(PlannedRuns, ComputeTheSameAsTheirWrittenPlan) {
  RunConfig automatic = planned("auto");
  automatic.run.exact = true;
  const RunResult chosen = run(2, automatic);
  RunConfig repeated =
      with_settings(config("repeated"), parse_settings(file("auto", "plan.toml"), "plan"), "plan");
  repeated.run.exact = true;
  EXPECT_EQ(run(2, repeated).weights_xxh3, chosen.weights_xxh3);
}

TEST_F(PlannedRuns, ResumeWithTheirPlan) {
  run(2, planned("auto"));
  const std::string settings = "[parallel]\ndata = 1\npipeline = 2\nschedule = \"gpipe\"\nmicrobatches = 2\n";
  write_file_atomic(folder_ / "auto" / "plan.toml", settings);
  run(2, resumed("auto"), RunStart::kResume);
  EXPECT_THAT(file("auto", "plan.toml"), HasSubstr("schedule = \"gpipe\""));
  EXPECT_THAT(file("auto", "console.log"), HasSubstr("as in the run's folder"));
}

TEST_F(PlannedRuns, ResumeOnOtherRanksWithNewPlan) {
  run(2, planned("auto"));
  write_file_atomic(folder_ / "auto" / "plan.toml", "[parallel]\ndata = 2\nzero = 3\n");
  run(1, resumed("auto"), RunStart::kResume);
  EXPECT_THAT(file("auto", "plan.toml"), AllOf(HasSubstr("data = 1"), Not(HasSubstr("zero"))));
}

TEST_F(PlannedRuns, RejectForeignPlanInFolder) {
  run(2, planned("auto"));
  write_file_atomic(folder_ / "auto" / "plan.toml", "[run]\nfolder = \"/etc\"\n");
  EXPECT_THAT([&] { run(2, resumed("auto"), RunStart::kResume); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("plan.toml"), HasSubstr("'run.folder'"))));
}

TEST_F(PlannedRuns, CostsAreMeasuredOnce) {
  run(2, planned("first"));
  ASSERT_FALSE(std::filesystem::is_empty(costs()));
  // The cached costs decide. With exchanges that take an hour, no gradients are exchanged.
  const auto kept = read_kept(planned("first"), {2, 2});
  ASSERT_TRUE(kept.has_value());
  MeasuredForms slow = *kept;
  for (Measurements& form : slow) {
    for (CostLine* line :
         {&form.exchanges.all_reduce, &form.exchanges.reduce_scatter, &form.exchanges.all_gather})
      line->fixed_s = 3600;
  }
  slow.resize(1);  // and no parts of layers
  keep(planned("first"), {2, 2}, slow);
  run(2, planned("second"));
  EXPECT_THAT(file("second", "plan.toml"), HasSubstr("pipeline = 2"));
}

TEST_F(PlannedRuns, DamagedCostsAreMeasuredAgain) {
  run(2, planned("first"));
  for (const auto& entry : std::filesystem::directory_iterator(costs())) write_file_atomic(entry.path(), "{");
  EXPECT_EQ(run(2, planned("second")).status, "completed");
  EXPECT_TRUE(read_kept(planned("second"), {2, 2}).has_value());
}

TEST_F(PlannedRuns, EndWithTheEstimateBesideTheSteps) {
  run(2, planned("auto"));
  const auto summary = nlohmann::json::parse(file("auto", "summary.json"));
  for (const char* term :
       {"forward_s", "backward_s", "update_s", "exchanges_and_waiting_s", "weights_bytes"}) {
    EXPECT_GE(summary.at(std::string("planned_") + term).get<double>(), 0) << term;
    EXPECT_GE(summary.at(std::string("measured_") + term).get<double>(), 0) << term;
  }
  EXPECT_GT(summary.at("measured_forward_s").get<double>(), 0);
  EXPECT_GT(summary.at("measured_backward_s").get<double>(), 0);
  EXPECT_GT(summary.at("measured_update_s").get<double>(), 0);
}

TEST_F(PlannedRuns, FewerSamplesThanRanksChangeMode) {
  RunConfig few = planned("few");
  few.train.global_batch = 1;
  EXPECT_EQ(run(2, few).status, "completed");
  EXPECT_THAT(file("few", "plan.toml"), HasSubstr("data = 1"));
}

TEST_F(PlannedRuns, KeepConfiguredValues) {
  RunConfig fixed = planned("fixed");
  fixed.parallel.data = 1;
  EXPECT_EQ(run(2, fixed).status, "completed");
  EXPECT_THAT(file("fixed", "plan.toml"), HasSubstr("data = 1"));
  EXPECT_EQ(parse_run_config(file("fixed", "config.toml"), "config.toml").parallel.data, 1);
}

TEST_F(PlannedRuns, CostsAreCachedByTheirInputs) {
  const RunConfig config = planned("a");
  const auto name = [](const RunConfig& changed, const RankLayout& layout = {4, 4}) {
    return *kept_measurements(changed, layout);
  };
  const auto with = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig changed = config;
    change(changed);
    return name(changed);
  };
  EXPECT_NE(name(config, {4, 4}), name(config, {4, 2})) << "two hosts";
  EXPECT_NE(name(config, {4, 4}), name(config, {8, 4}));
  EXPECT_NE(with([](RunConfig& each) { each.data.path = "/elsewhere"; }), name(config));
  EXPECT_NE(with([](RunConfig& each) { each.train.clip_norm = 0; }), name(config));
  EXPECT_NE(with([](RunConfig& each) { each.model.hidden = {9}; }), name(config));
  EXPECT_NE(with([](RunConfig& each) { each.comm.all_reduce = "ring"; }), name(config));
  EXPECT_EQ(with([](RunConfig& each) { each.run.name = "b"; }), name(config));
  EXPECT_EQ(with([](RunConfig& each) { each.train.max_steps = 7; }), name(config));
  EXPECT_EQ(with([](RunConfig& each) { each.parallel.zero = 2; }), name(config)) << "a planned key";
}

TEST_F(PlannedRuns, OfAParameterServerAreRejected) {
  RunConfig served = planned("served");
  served.parallel.mode = "ps";
  EXPECT_THROW(run(2, served), InvalidArgument);
}

/// The plan of a loop without run_training(), in words. All ranks must have it.
std::string planned_loop(int ranks, const RunConfig& config, const std::filesystem::path& file,
                         const std::function<void(const ParallelPlan&, comm::Context&)>& use = {}) {
  std::string words;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    const data::DataSource data = open_data(config);
    const ParallelPlan plan = fastest_plan(config, context, data, {.file = file});
    const std::string mine = to_toml(planned_settings(plan.config()));
    for (const std::string& other : context.world().all_gather_text(mine)) EXPECT_EQ(other, mine);
    if (use) use(plan, context);
    if (context.is_main()) words = in_words(plan.config(), ranks);
  });
  return words;
}

TEST_F(PlannedRuns, OwnLoopsTrainByTheFastestPlan) {
  const RunConfig config = this->config("loop");
  planned_loop(2, config, {}, [&](const ParallelPlan& plan, comm::Context& context) {
    EXPECT_EQ(plan.world_size(), 2);
    EXPECT_GT(plan.config().parallel.planned_step_s, 0);
    const data::DataSource data = open_data(config);
    Trainer trainer(plan, context, data);
    while (!trainer.finished()) trainer.step();
    EXPECT_EQ(trainer.steps_done(), 12);
  });
}

TEST_F(PlannedRuns, CustomLoopsKeepPlanForSameRanks) {
  const std::filesystem::path file = folder_ / "new" / "plan.toml";
  planned_loop(2, config("loop"), file);
  EXPECT_THAT(read_file(file), HasSubstr("planned_step_s = "));
  write_file_atomic(file, "[parallel]\ndata = 1\npipeline = 2\nschedule = \"gpipe\"\nmicrobatches = 2\n");
  EXPECT_THAT(planned_loop(2, config("loop"), file), HasSubstr("gpipe"));
  EXPECT_THAT(planned_loop(1, config("loop"), file), Not(HasSubstr("gpipe")));
  EXPECT_THAT(read_file(file), Not(HasSubstr("gpipe")));
}

TEST_F(PlannedRuns, OwnLoopsWithFixedKeysKeepThem) {
  RunConfig fixed = config("loop");
  fixed.parallel.pipeline = 2;
  planned_loop(2, fixed, {}, [](const ParallelPlan& plan, comm::Context&) {
    EXPECT_EQ(plan.config().parallel.pipeline, 2);
    EXPECT_EQ(plan.pipeline_options().cuts.size(), 1U);
  });
}

}  // namespace
}  // namespace trireme::train
