// The memory estimate of layers with known bytes, and plans that it cannot estimate.
#include "trireme/train/estimate/memory_forecast.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include "tests/unit/train/four_layers.h"
#include "trireme/base/error.h"
#include "trireme/base/large_blocks.h"
#include "trireme/comm/tensor_blocks.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/parallel/allocated_bytes.h"
#include "trireme/parallel/data/gradient_hook.h"
#include "trireme/train/estimate/process_memory.h"

namespace trireme::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::int64_t> mib_of(const MemoryUse& use) {
  std::vector<std::int64_t> mib;
  for (const MemoryKind kind :
       {MemoryKind::kWeights, MemoryKind::kGradients, MemoryKind::kOptimizer, MemoryKind::kActivations})
    mib.push_back(use[kind] / (1 << 20));
  return mib;
}

TEST(ForecastMemory, OneRankHoldsStateAndActivations) {
  const auto ranks = forecast_memory(plan_of(config_of_four(), 1), four_layers(), WeightsMemory::kOwn);
  ASSERT_EQ(ranks.size(), 1U);
  // The peak is in the last layer's backward, where only its gradient exists.
  EXPECT_THAT(mib_of(ranks[0].at_peak), ElementsAre(4, 1, 8, 40 + 2));
}

TEST(ForecastMemory, OfReplicasHasAllGradientsInBuckets) {
  RunConfig config = config_of_four();
  const auto whole = forecast_memory(plan_of(config, 2), four_layers(), WeightsMemory::kOwn);
  EXPECT_THAT(mib_of(whole[0].at_peak), ElementsAre(4, 4, 8, 42));
  config.parallel.zero = 1;
  const auto own = forecast_memory(plan_of(config, 2), four_layers(), WeightsMemory::kOwn);
  EXPECT_THAT(mib_of(own[0].at_peak), ElementsAre(4, 4, 4, 42));
  const auto common = forecast_memory(plan_of(config, 2), four_layers(), WeightsMemory::kCommon);
  EXPECT_THAT(mib_of(common[0].at_peak), ElementsAre(2, 4, 4, 42)) << "one copy between two ranks";
}

TEST(ForecastMemory, ProcessAddsMemoryBesideTensors) {
  RunConfig config = config_of_four();
  const auto told = [&](const char* backend, std::int64_t zero) {
    config.comm.backend = backend;
    config.parallel.zero = zero;
    const ParallelPlan plan = plan_of(config, 2);
    return forecast_memory(plan, four_layers(), weights_memory(plan))[0];
  };
  constexpr std::int64_t kBase = 60 << 20;
  const ForecastOfRank gloo = told("gloo", 1);
  EXPECT_EQ(gloo.shared_bytes, 0);
  EXPECT_EQ(process_bytes(gloo, kBase), gloo.at_peak.total() * 9 / 8 + kBase + kRunBytes);
  const ForecastOfRank shm = told("shm", 1);
  EXPECT_EQ(shm.shared_bytes, (4 / 2 + 4) << 20) << "weights by share, and buckets";
  EXPECT_EQ(process_bytes(shm, kBase),
            shm.at_peak.total() + (shm.at_peak.total() - shm.shared_bytes) / 8 + kBase + kRunBytes);
  EXPECT_EQ(told("gloo", 0).first_step_bytes, (4 + 4 + 4 + 8) << 20) << "gradients twice, no activations";
}

TEST(ForecastMemory, CountsCopiesOfCheckpointOnRank) {
  RunConfig config = config_of_four();
  const auto activations = [&](int ranks) {
    return mib_of(forecast_memory(plan_of(config, ranks), four_layers(), WeightsMemory::kOwn)[0].at_peak)[3];
  };
  const std::int64_t alone = activations(1), replica = activations(2);
  config.checkpoint.every_steps = 10;
  EXPECT_EQ(activations(1), alone + 4 + 8) << "weights and both moments";
  EXPECT_EQ(activations(2), replica + (4 + 8) / 2) << "ranks write alike many bytes";
  config.parallel.zero = 1;
  EXPECT_EQ(activations(2), replica + (4 + 8) / 2);
  config.parallel.zero = 0;
  config.offload.optimizer = "files";
  EXPECT_EQ(activations(2), replica + 4 / 2) << "state in files is read as it is written";
  config.offload.optimizer = "none";
  config.checkpoint.asynchronous = false;
  EXPECT_EQ(activations(2), replica);
  config.checkpoint = {.best = "loss"};
  EXPECT_EQ(activations(2), replica + (4 + 8) / 2);
}

TEST(ForecastMemory, ShardedParametersTakeTwoLayersAndBuckets) {
  RunConfig config = config_of_four();
  config.parallel.zero = 3;
  const auto own = forecast_memory(plan_of(config, 2), four_layers(), WeightsMemory::kOwn);
  EXPECT_THAT(mib_of(own[0].at_peak), ElementsAre(2 + 2, 2, 4, 42 + 3))
      << "stages are layers: outputs are held";
  config.parallel.gathered_layers = 0;
  const auto all = forecast_memory(plan_of(config, 2), four_layers(), WeightsMemory::kOwn);
  EXPECT_THAT(mib_of(all[0].at_peak)[0], 2 + 4);
}

TEST(ForecastMemory, StagesCountMicroBatchesInFlight) {
  RunConfig config = config_of_four();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 4;
  config.parallel.partition = "parameters";
  const auto at_once = [&](const char* schedule) {
    config.parallel.schedule = schedule;
    std::vector<std::int64_t> activations;
    for (const ForecastOfRank& rank : forecast_memory(plan_of(config, 2), four_layers(), WeightsMemory::kOwn))
      activations.push_back(mib_of(rank.at_peak)[3]);
    return activations;
  };
  // A micro-batch saves 20 MiB, plus 1 MiB for its output or input. The first rank holds two, and a gradient
  // may be in flight. The last rank holds one.
  EXPECT_THAT(at_once("1f1b"), ElementsAre(2 * 21 + 2, 21 + 2 + 1));
  EXPECT_THAT(at_once("gpipe"), ElementsAre(4 * 21 + 2 + 1, 4 * 21 + 2));
}

TEST(ForecastMemory, SplitBackwardAddsGradientsOneByOne) {
  RunConfig config = config_of_four();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 4;
  config.parallel.partition = "parameters";
  config.parallel.schedule = "zb-h1";
  const auto peak_with = [&](double largest_gradient_bytes) {
    ModelUse model = four_layers();
    for (LayerUse& layer : model.layers) {
      layer.memory.for_weights_bytes = 30 * kMib;  // the second part has the peak
      layer.memory.largest_gradient_bytes = largest_gradient_bytes;
    }
    std::vector<std::int64_t> peaks;
    for (const ForecastOfRank& rank : forecast_memory(plan_of(config, 2), model, WeightsMemory::kOwn))
      peaks.push_back(rank.at_peak.total());
    return peaks;
  };
  const std::vector<std::int64_t> small = peak_with(0), large = peak_with(kMib);
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(large[rank], small[rank] + (1 << 20)) << rank;
}

TEST(ForecastMemory, OfAsynchronousStagesHasTheirVersions) {
  RunConfig config = config_of_four();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 1;
  config.parallel.partition = "parameters";
  config.parallel.schedule = "pipedream";
  config.train.clip_norm = 0;
  const auto ranks = forecast_memory(plan_of(config, 2), four_layers(), WeightsMemory::kOwn);
  EXPECT_EQ(mib_of(ranks[0].at_peak)[0], 2 * 2) << "two versions of the first stage";
  EXPECT_EQ(mib_of(ranks[1].at_peak)[0], 2) << "one of the last";
}

TEST(ForecastMemory, OfReplicatedStagesIsOfEachRank) {
  RunConfig config = config_of_four();
  config.parallel.pipeline = 3;
  config.parallel.schedule = "1f1b-rr";
  config.parallel.stage_replicas = {2, 1};
  config.parallel.cuts = {2};
  const auto ranks = forecast_memory(plan_of(config, 3), four_layers(), WeightsMemory::kOwn);
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_THAT(ranks[0].stages, ElementsAre(0));
  EXPECT_THAT(ranks[1].stages, ElementsAre(0));
  EXPECT_THAT(ranks[2].stages, ElementsAre(1));
  EXPECT_EQ(ranks[1].at_peak[MemoryKind::kOptimizer], ranks[0].at_peak[MemoryKind::kOptimizer]);
}

TEST(ForecastMemory, RejectsDataDependentPrograms) {
  RunConfig config = config_of_four();
  config.offload.activations = "files";
  EXPECT_THAT([&] { forecast_memory(plan_of(config, 1), four_layers(), WeightsMemory::kOwn); },
              ThrowsMessage<InvalidArgument>(HasSubstr("offload.activations")));
  config = config_of_four();
  config.parallel.local_steps = 4;
  EXPECT_THAT([&] { forecast_memory(plan_of(config, 2), four_layers(), WeightsMemory::kOwn); },
              ThrowsMessage<InvalidArgument>(HasSubstr("parallel.local_steps")));
}

data::DataSource data_to_measure() {
  return {.name = "small",
          .train = std::make_shared<data::SyntheticDataset>(
              data::SyntheticOptions{.num_samples = 32, .num_classes = 4, .height = 6, .width = 6}),
          .test = std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
              .num_samples = 32, .num_classes = 4, .height = 6, .width = 6, .split = 1}),
          .input_shape = {1, 6, 6},
          .num_classes = 4};
}

TEST(MeasureMemory, CountsLargeTensorsThatLieInMappings) {
  constexpr std::int64_t kBytes = 8 << 20;
  comm::keep_tensor_blocks();  // like a rank
  const parallel::AllocatedBytes allocated;
  {
    const at::Tensor large = at::empty({kBytes}, at::kByte);
    ASSERT_TRUE(LargeBlocks::of_process().has(large.const_data_ptr()));
    EXPECT_EQ(allocated.current(), kBytes);
  }
  EXPECT_EQ(allocated.current(), 0);
  EXPECT_EQ(allocated.peak(), kBytes);
}

TEST(MeasureMemory, LeavesCustomModelUnchanged) {
  RunConfig config = config_of_four();
  const data::DataSource data = data_to_measure();
  const auto model = model::make_model({.name = "mlp", .hidden = {8, 8, 8}}, data.input_shape, 4, 1);
  const at::Tensor before = model->parameters()[0].detach().clone();
  model->parameters()[0].mutable_grad() = before.clone();
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const ParallelPlan plan = resolve_plan(config, 1);
    for (int time = 0; time < 2; ++time) {  // a remaining hook would be rejected
      const MemoryForecast forecast = measure_memory(plan, context, data, WeightsMemory::kOwn, model);
      EXPECT_GT(forecast.largest().at_peak[MemoryKind::kActivations], 0);
    }
    EXPECT_TRUE(model->parameters()[0].equal(before));
    EXPECT_TRUE(model->parameters()[0].grad().equal(before));
    EXPECT_FALSE(model->parameters()[1].grad().defined());
  });
}

TEST(MeasureMemory, RejectionLeavesGradients) {
  const data::DataSource data = data_to_measure();
  const auto model = model::make_model({.name = "mlp", .hidden = {8, 8, 8}}, data.input_shape, 4, 1);
  const std::vector<at::Tensor> parameters = model->parameters();
  const at::Tensor gradient = parameters[0].detach().clone();
  parameters[0].mutable_grad() = gradient;
  parallel::hook_gradient(parameters[1], "told to somebody", [] {});
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const auto measure = [&] {
      measure_memory(resolve_plan(config_of_four(), 1), context, data, WeightsMemory::kOwn, model);
    };
    EXPECT_THAT(measure, testing::Throws<InvalidArgument>());
    EXPECT_TRUE(parameters[0].grad().defined() && parameters[0].grad().equal(gradient));
    parallel::unhook_gradient(parameters[1]);
    EXPECT_NO_THROW(measure()) << "and no hook of its own stayed";
  });
}

TEST(MeasureMemory, OneMeasurementServesAllModes) {
  const data::DataSource data = data_to_measure();
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    RunConfig config = config_of_four();
    const auto measured = [&](int ranks) {
      return measure_memory(resolve_plan(config, ranks), context, data, WeightsMemory::kOwn);
    };
    const MemoryForecast replicas = measured(2);
    for (const std::int64_t zero : {1, 2, 3}) {
      config.parallel.zero = zero;
      const auto told = forecast_from(replicas, resolve_plan(config, 2), WeightsMemory::kOwn);
      ASSERT_TRUE(told.has_value()) << zero;
      EXPECT_EQ(told->largest().at_peak.bytes, measured(2).largest().at_peak.bytes) << zero;
    }
    config.parallel.zero = 0;
    config.train.recompute_layers = {"*"};
    const auto recomputed = forecast_from(replicas, resolve_plan(config, 2), WeightsMemory::kOwn);
    ASSERT_TRUE(recomputed.has_value());
    EXPECT_EQ(recomputed->largest().at_peak.bytes, measured(2).largest().at_peak.bytes);
    EXPECT_FALSE(forecast_from(replicas, resolve_plan(config, 4), WeightsMemory::kOwn)) << "smaller batches";
    config.train.precision = "bf16";
    EXPECT_FALSE(forecast_from(replicas, resolve_plan(config, 2), WeightsMemory::kOwn)) << "smaller tensors";
  });
}

TEST(MeasureMemory, KeepsMeasuredCutsAndSplitsBackward) {
  const data::DataSource data = data_to_measure();
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    RunConfig config = config_of_four();
    config.parallel.pipeline = 2;
    config.parallel.microbatches = 2;  // with cuts by measured time
    const MemoryForecast stages = measure_memory(resolve_plan(config, 2), context, data, WeightsMemory::kOwn);
    EXPECT_EQ(stages.plan.cuts().size(), 1U);
    config.parallel.recompute = true;
    const auto recomputed = forecast_from(stages, resolve_plan(config, 2), WeightsMemory::kOwn);
    ASSERT_TRUE(recomputed.has_value());
    EXPECT_EQ(recomputed->plan.cuts(), stages.plan.cuts());
    EXPECT_LT(recomputed->largest().at_peak.total(), stages.largest().at_peak.total());
    config.parallel.recompute = false;
    config.parallel.schedule = "zb-h1";
    EXPECT_FALSE(forecast_from(stages, resolve_plan(config, 2), WeightsMemory::kOwn));
  });
}

}  // namespace
}  // namespace trireme::train
