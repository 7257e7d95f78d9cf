// Reads from the device in a training step. Each read would wait for all issued work.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/stand_in_device.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/data/producer.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

RunConfig small_config() {
  RunConfig config;
  config.data.name = "synthetic";
  config.model.hidden = {8};
  config.train = {.global_batch = 64, .accumulation = 2};
  config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0.9};
  config.comm.device = test::kStandInDevice;
  return config;
}

/// The increase of a count in one step, after some steps.
std::int64_t counted_in_a_step(const RunConfig& config, std::int64_t (*count)(),
                               const std::optional<data::DataSource>& own = {}) {
  std::int64_t counted = 0;
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               const data::DataSource data = own ? *own : open_data(config);
                               Trainer trainer(config, context, data);
                               EXPECT_EQ(trainer.parameters().front().second.device(), context.device());
                               for (int i = 0; i < 3; ++i) trainer.step();
                               const std::int64_t before = count();
                               trainer.step();
                               counted = count() - before;
                             },
                             {.device = test::kStandInDevice});
  return counted;
}

/// Reads and copies that wait for the device.
std::int64_t waits() { return test::reads_from_stand_in() + test::copies_from_pageable_memory(); }

TEST(TrainerCopies, BatchesFromPinnedMemoryAlone) {
  RunConfig config = small_config();
  config.train.clip_norm = 0;
  config.run.log_every_steps = 1000;
  EXPECT_EQ(counted_in_a_step(config, test::copies_from_pageable_memory), 0);
  data::DataSource made = open_data(config);
  const data::Example one = made.train->trial_batch(1);
  made.train = std::make_shared<data::ProducedSamples>(
      data::ProducedOptions{.like = {one.input->select(0, 0), one.target->select(0, 0)},
                            .samples_per_epoch = 1000,
                            .threads = 1,
                            .produce = [](data::Producer& producer) {
                              while (producer.fill([](data::Row& row) {
                                row.sample.input->zero_();
                                row.sample.target->zero_();
                              })) {
                              }
                            }});
  EXPECT_EQ(counted_in_a_step(config, test::copies_from_pageable_memory, made), 0);
}

/// Changes of small_config(), with one row for each part of a step and each optimizer.
struct ModeOnOneRank {
  const char* name;
  std::function<void(RunConfig&)> change;
};

const ModeOnOneRank kModesOnOneRank[] = {
    {"Plain", [](RunConfig&) {}},
    {"EightMicroBatches", [](RunConfig& config) { config.train.accumulation = 8; }},
    {"Clipped", [](RunConfig& config) { config.train.clip_norm = 0.01; }},
    {"LogsEachStep", [](RunConfig& config) { config.run.log_every_steps = 1; }},
    {"Bf16", [](RunConfig& config) { config.train.precision = "bf16"; }},
    {"Fp16",
     [](RunConfig& config) {
       config.train.precision = "fp16";
       config.scaler.initial = 1024;
     }},
    {"SkipsNonFinite", [](RunConfig& config) { config.train.non_finite = "skip"; }},
    {"MovingAverage", [](RunConfig& config) { config.train.ema_decay = 0.9; }},
    {"NoiseScale", [](RunConfig& config) { config.train.noise_scale_every_steps = 1; }},
    {"ClassWeights",
     [](RunConfig& config) { config.objective.class_weights = std::vector<double>(10, 0.5); }},
    {"Recomputed", [](RunConfig& config) { config.train.recompute_layers = {"fc1"}; }},
    {"Adam", [](RunConfig& config) { config.optimizer = {.name = "adam"}; }},
    {"AdamW", [](RunConfig& config) { config.optimizer = {.name = "adamw"}; }},
    {"Lamb", [](RunConfig& config) { config.optimizer = {.name = "lamb"}; }},
    {"Lars", [](RunConfig& config) { config.optimizer = {.name = "lars"}; }},
    {"Lion", [](RunConfig& config) { config.optimizer = {.name = "lion"}; }},
    {"Muon", [](RunConfig& config) { config.optimizer = {.name = "muon"}; }},
    {"Adagrad", [](RunConfig& config) { config.optimizer = {.name = "adagrad"}; }},
    {"RmsProp", [](RunConfig& config) { config.optimizer = {.name = "rmsprop"}; }},
    {"Zero1", [](RunConfig& config) { config.parallel.zero = 1; }},
    {"Zero3Clipped",
     [](RunConfig& config) {
       config.parallel.zero = 3;
       config.train.clip_norm = 0.01;
     }},
    {"StateInPinnedMemory",
     [](RunConfig& config) {
       config.optimizer.name = "adamw";
       config.offload.optimizer = "host";
       config.offload.part_mib = 0.001;
     }},
    {"ActivationsInPinnedMemory", [](RunConfig& config) { config.offload.activations = "host"; }},
};

std::ostream& operator<<(std::ostream& out, const ModeOnOneRank& mode) { return out << mode.name; }

class StepsOnADevice : public testing::TestWithParam<ModeOnOneRank> {};

TEST_P(StepsOnADevice, NeverAwaitDevice) {
  RunConfig config = small_config();
  config.train.clip_norm = 0;
  config.run.log_every_steps = 1000;
  GetParam().change(config);
  EXPECT_EQ(counted_in_a_step(config, waits), 0);
}

INSTANTIATE_TEST_SUITE_P(Of, StepsOnADevice, testing::ValuesIn(kModesOnOneRank),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(TrainerReads, ReportStepDuringNextOne) {
  RunConfig config = small_config();
  config.train.clip_norm = 0.01;
  EXPECT_EQ(counted_in_a_step(config, test::waits_for_events_of_stand_in), 2)
      << "loss and norm of the step before";
}

TEST(TrainerReads, ReadEvaluationOnceForAnyMetrics) {
  RunConfig config = small_config();
  config.objective.metrics = {"accuracy", "top_k", "perplexity"};
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               const data::DataSource data = open_data(config);
                               Trainer trainer(config, context, data);
                               ASSERT_GT(data.test->size(), 10 * 64);
                               const std::int64_t before = test::reads_from_stand_in();
                               const Evaluation found = trainer.evaluate();
                               EXPECT_EQ(test::reads_from_stand_in() - before, 1);
                               EXPECT_EQ(found.metrics.size(), 3U);
                             },
                             {.device = test::kStandInDevice});
}

struct ScaledRun {
  std::vector<double> losses, scales;
  std::vector<bool> skipped;
  std::string weights;
};

/// Ten steps with a moving average. The first gradients are not finite.
ScaledRun scaled_run(const std::string& device, const std::string& optimizer) {
  RunConfig config = small_config();
  config.comm.device = device;
  config.train.precision = "fp16";
  config.train.ema_decay = 0.9;
  config.train.convolution = "aten";
  config.scaler = {.initial = 16777216, .interval = 2};
  config.optimizer = {.name = optimizer, .lr = 0.01};
  ScaledRun run;
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               const data::DataSource data = open_data(config);
                               Trainer trainer(config, context, data);
                               const auto take = [&](const std::optional<StepReport>& report) {
                                 if (!report) return false;
                                 run.losses.push_back(report->skipped ? 0 : report->loss);
                                 run.scales.push_back(report->loss_scale.value());
                                 run.skipped.push_back(report->skipped);
                                 return true;
                               };
                               for (int i = 0; i < 10; ++i) take(trainer.step());
                               while (take(trainer.last_report())) {
                               }
                               checkpoint::TensorMap tensors;
                               for (const StatePart& part : trainer.state()) {
                                 for (const checkpoint::Shard& shard : part.shards)
                                   tensors.emplace(shard.name, shard.tensor.detach().cpu());
                               }
                               run.weights = checkpoint::xxh3_of(tensors);
                             },
                             {.device = device});
  return run;
}

TEST(TrainerReads, SkipSameStepsAsCpu) {
  for (const char* optimizer : {"sgd", "adamw", "lion"}) {
    const ScaledRun here = scaled_run("cpu", optimizer), there = scaled_run(test::kStandInDevice, optimizer);
    ASSERT_EQ(here.skipped.size(), 10U);
    EXPECT_GT(std::count(here.skipped.begin(), here.skipped.end(), true), 1);
    EXPECT_LT(std::count(here.skipped.begin(), here.skipped.end(), true), 8);
    EXPECT_EQ(there.skipped, here.skipped) << optimizer;
    EXPECT_EQ(there.scales, here.scales) << optimizer;
    EXPECT_EQ(there.losses, here.losses) << optimizer;
    EXPECT_EQ(there.weights, here.weights) << optimizer;
  }
}

TEST(TrainerReads, EndRunStepAfterTooManySkips) {
  RunConfig config = small_config();
  config.train.precision = "fp16";
  config.train.max_skipped_steps = 2;
  config.scaler = {.initial = 16777216};
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               const data::DataSource data = open_data(config);
                               Trainer trainer(config, context, data);
                               trainer.step();
                               trainer.step();
                               EXPECT_EQ(trainer.skipped_in_a_row(), 2);
                               EXPECT_THROW(trainer.step(), DivergedError);
                             },
                             {.device = test::kStandInDevice});
}

}  // namespace
}  // namespace trireme::train
