// What a training step reads back from its device: each read would wait for all that it has been given to do.
#include <gtest/gtest.h>

#include "tests/support/stand_in_device.h"
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

/// By how much a count grows in one step, after some.
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

std::int64_t reads_of_a_step(const RunConfig& config) {
  return counted_in_a_step(config, test::reads_from_stand_in);
}

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

TEST(TrainerCopies, AStateInTheHostsMemoryPassesWithoutAWait) {
  RunConfig config = small_config();
  config.train.clip_norm = 0;
  config.run.log_every_steps = 1000;
  config.optimizer.name = "adamw";
  config.offload.optimizer = "host";
  config.offload.part_mib = 0.001;
  EXPECT_EQ(counted_in_a_step(config, test::copies_from_pageable_memory), 0);
  EXPECT_EQ(reads_of_a_step(config), 1) << "of the loss alone";
}

TEST(TrainerReads, OnlyTheLossHoweverManyMicroBatchesThereAre) {
  RunConfig config = small_config();
  config.train.clip_norm = 0;
  config.run.log_every_steps = 1000;
  EXPECT_EQ(reads_of_a_step(config), 1);
  config.train.accumulation = 8;
  EXPECT_EQ(reads_of_a_step(config), 1);
}

TEST(TrainerReads, TheNormBesidesWhereGradientsAreClipped) {
  RunConfig config = small_config();
  config.train.clip_norm = 0.01;
  EXPECT_EQ(reads_of_a_step(config), 2);
}

TEST(TrainerReads, WhetherGradientsAreFiniteWhereTheLossIsScaled) {
  RunConfig config = small_config();
  config.train.precision = "fp16";
  config.train.clip_norm = 0;
  config.run.log_every_steps = 1000;
  EXPECT_EQ(reads_of_a_step(config), 2);
}

TEST(TrainerReads, AnEvaluationOnceHoweverManyBatchesAndMetricsItHas) {
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

TEST(TrainerCopies, WeightsOfClassesOnce) {
  RunConfig config = small_config();
  config.objective.class_weights = std::vector<double>(10, 0.5);
  EXPECT_EQ(counted_in_a_step(config, test::copies_from_pageable_memory), 0);
}

}  // namespace
}  // namespace trireme::train
