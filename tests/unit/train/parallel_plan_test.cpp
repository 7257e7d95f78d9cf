// The decisions of a plan about a configuration. The plan is the only input of the code that executes it.
#include "trireme/train/plan/parallel_plan.h"

#include <gmock/gmock.h>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

RunConfig pipeline_config() {
  RunConfig config;
  config.data.name = "synthetic";
  config.model.hidden = {8, 8, 8};
  config.train.global_batch = 16;
  config.train.max_steps = 2;
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 2;
  config.parallel.partition = "parameters";
  return config;
}

TEST(ParallelPlan, ArrangesRanksAsStagesOfReplicas) {
  const ParallelPlan plan = resolve_plan(pipeline_config(), 6);
  EXPECT_EQ(plan.world_size(), 6);
  EXPECT_EQ(plan.pipeline_ranks(), 2);
  EXPECT_EQ(plan.num_replicas(), 3);
  ASSERT_EQ(plan.mesh().axes().size(), 2U);
  EXPECT_EQ(plan.mesh().axes()[0].name, "pp");
  EXPECT_EQ(plan.mesh().axes()[0].size, 2);
  EXPECT_EQ(plan.mesh().axes()[1].name, "dp");
  EXPECT_EQ(plan.mesh().axes()[1].size, 3);
  EXPECT_EQ(plan.num_microbatches(), 2);
  EXPECT_EQ(plan.num_parts(), 6);
  EXPECT_EQ(plan.program().ranks.size(), 2U);
  EXPECT_FALSE(plan.asynchronous());
}

TEST(ParallelPlan, NamedCutsAreStagesOrRejected) {
  RunConfig config = pipeline_config();
  config.parallel.partition = "auto";
  const ModelShape shape{.name = "four", .parameters = {9, 1, 1, 1}};
  config.parallel.cuts = {3};
  EXPECT_THAT(resolve_plan(config, 2).for_model(shape).cuts(), ElementsAre(3));
  for (const std::vector<std::int64_t>& wrong :
       {std::vector<std::int64_t>{1, 2}, std::vector<std::int64_t>{4}, std::vector<std::int64_t>{-1}}) {
    config.parallel.cuts = wrong;
    EXPECT_THAT([&] { resolve_plan(config, 2).for_model(shape); },
                ThrowsMessage<InvalidArgument>(HasSubstr("parallel.cuts")));
  }
  config.parallel.pipeline = 3;
  config.parallel.microbatches = 3;
  config.parallel.cuts = {2, 2};
  EXPECT_THAT([&] { resolve_plan(config, 3).for_model(shape); },
              ThrowsMessage<InvalidArgument>(HasSubstr("they rise")));
}

TEST(ParallelPlan, ClipsByDefaultWithTotalNorm) {
  const auto clip_norm = [](const std::string& content) {
    const std::string all = "[data]\nname = \"synthetic\"\n[parallel]\npipeline = 2\n" + content;
    return resolve_plan(parse_run_config(all, "run.toml"), 2).config().train.clip_norm;
  };
  EXPECT_EQ(clip_norm(""), 1);
  EXPECT_EQ(clip_norm("schedule = \"pipedream\"\n"), 0);
  EXPECT_EQ(clip_norm("schedule = \"pipedream\"\n[train]\nclip_norm = 0\n"), 0);
  EXPECT_THAT(
      [&] { clip_norm("schedule = \"pipedream\"\n[train]\nclip_norm = 1.0\n"); },
      ThrowsMessage<InvalidArgument>(HasSubstr("train.clip_norm = 1.0 needs the norm of all gradients")));
  RunConfig in_code = pipeline_config();
  in_code.parallel.schedule = "pipedream";
  in_code.parallel.microbatches = 0;
  EXPECT_EQ(resolve_plan(in_code, 2).config().train.clip_norm, 0);
}

TEST(ParallelPlan, IsOneStageWithoutPipeline) {
  RunConfig config = pipeline_config();
  config.parallel = {};
  config.train.accumulation = 3;
  const ParallelPlan plan = resolve_plan(config, 4);
  EXPECT_FALSE(plan.is_cut());
  EXPECT_EQ(plan.num_replicas(), 4);
  EXPECT_EQ(plan.num_microbatches(), 3);
  EXPECT_EQ(plan.program().num_stages, 1);
}

TEST(ParallelPlan, ReadsPrecisionKernelsAndTrace) {
  RunConfig config = pipeline_config();
  config.train.precision = "fp16";
  config.train.convolution = "aten";
  config.train.memory_format = "channels_last";
  config.parallel.compression = "bf16";
  config.run.trace = "trace.json";
  config.run.trace_steps = "3:7";
  const ParallelPlan plan = resolve_plan(config, 2);
  EXPECT_EQ(plan.precision().autocast_to, at::kHalf);
  EXPECT_TRUE(plan.precision().scales_loss);
  EXPECT_TRUE(plan.skips_non_finite()) << "a scale is found by steps that overflow";
  EXPECT_EQ(plan.convolutions(),
            (ConvolutionRule{.kernels = ConvolutionKernels::kAten, .channels_last = true}));
  EXPECT_EQ(plan.rounding().relative, 0x1p-8);
  EXPECT_EQ(plan.trace().first_step, 3);
  EXPECT_EQ(plan.trace().last_step, 7);
}

TEST(ParallelPlan, CutsByShapeWithoutMeasurement) {
  const ModelShape shape{.name = "mine", .parameters = {100, 1, 1, 1}};
  RunConfig config = pipeline_config();
  EXPECT_THAT(resolve_plan(config, 2, shape).cuts(), ElementsAre(1));
  config.parallel.partition = "uniform";
  EXPECT_THAT(resolve_plan(config, 2, shape).cuts(), ElementsAre(2));
  config.parallel.partition = "time";
  EXPECT_THAT(resolve_plan(config, 2, shape).cuts(), ElementsAre());
}

TEST(ParallelPlan, UncuttableModelNamesUncutPlan) {
  EXPECT_THAT([] { resolve_plan(pipeline_config(), 2, ModelShape{.name = "Mine", .parameters = {}}); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("the model of type Mine cannot be cut"),
                        HasSubstr("nearest plan that works on 2 ranks: parallel.pipeline = 1"))));
}

TEST(ParallelPlan, ReadsProgramOnceAndHooksEachPipeline) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "own.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  RunConfig config = pipeline_config();
  config.parallel.schedule = (folder / "own.csv").string();
  const ParallelPlan plan = resolve_plan(config, 2);
  std::filesystem::remove(folder / "own.csv");
  const parallel::PipelineOptions first = plan.pipeline_options(), second = plan.pipeline_options();
  ASSERT_TRUE(first.program.has_value());
  EXPECT_NE(first.data_parallel.hook, second.data_parallel.hook);
  const data::DataSource data = data::open_data(config.data);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Trainer trainer(plan, context, data);
    trainer.step();
    EXPECT_GT(trainer.last_report()->loss, 0);
    EXPECT_TRUE(verify(plan, context, data, 1).equal() || !context.is_main());
  });
}

TEST(ParallelPlan, UnrunnableProgramNamesNoNearestPlan) {
  const test::TemporaryFolder folder;
  RunConfig config = pipeline_config();
  config.parallel.schedule = (folder / "own.csv").string();
  const auto refusal = [&](const char* program) -> std::string {
    write_file_atomic(folder / "own.csv", program);
    try {
      resolve_plan(config, 4);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_THAT(refusal("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n"), testing::Not(HasSubstr("nearest plan")));
  EXPECT_THAT(refusal("0F0,0F1,0RECOMPUTE0,0B0,0RECOMPUTE1,0B1\n1F0,1B0,1F1,1B1\n"),
              testing::EndsWith("; the nearest plan that works on 4 ranks: parallel.recompute = true"));
  EXPECT_THAT(refusal("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1\n3F0,3B0,3F1,3B1\n"),
              testing::EndsWith("; the nearest plan that works on 4 ranks: parallel.pipeline = 4"));
}

TEST(ParallelPlan, TrainerPlanHasItsMeasuredCuts) {
  RunConfig config = pipeline_config();
  config.parallel.partition = "time";
  const data::DataSource data = data::open_data(config.data);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Trainer trainer(config, context, data);
    ASSERT_EQ(trainer.plan().cuts().size(), 1U);
    EXPECT_EQ(trainer.plan().cuts()[0], trainer.pipeline().stages()[1].first);
  });
}

TEST(ParallelPlan, TrainerRejectsPlanForOtherRanks) {
  const RunConfig config = pipeline_config();
  const ParallelPlan plan = resolve_plan(config, 4);
  const data::DataSource data = data::open_data(config.data);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    EXPECT_THAT([&] { const Trainer trainer(plan, context, data); },
                ThrowsMessage<InvalidArgument>(HasSubstr("the plan is for 4 ranks, and this world has 2")));
  });
}

}  // namespace
}  // namespace trireme::train
