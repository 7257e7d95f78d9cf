// What a training step reads back from its device: each read would wait for all that it has been given to do.
#include <gtest/gtest.h>

#include "tests/support/stand_in_device.h"
#include "trireme/train/registry.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

RunConfig small_config() {
  RunConfig config;
  config.data.name = "synthetic";
  config.model.hidden = {8};
  config.train = {.global_batch = 64, .accumulation = 2};
  config.comm.device = test::kStandInDevice;
  return config;
}

/// Of one step, after some.
std::int64_t reads_of_a_step(const RunConfig& config) {
  std::int64_t reads = 0;
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               const data::DataSource data = open_data(config);
                               Trainer trainer(config, context, data);
                               EXPECT_EQ(trainer.parameters().front().second.device(), context.device());
                               for (int i = 0; i < 3; ++i) trainer.step();
                               const std::int64_t before = test::reads_from_stand_in();
                               trainer.step();
                               reads = test::reads_from_stand_in() - before;
                             },
                             {.device = test::kStandInDevice});
  return reads;
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

}  // namespace
}  // namespace trireme::train
