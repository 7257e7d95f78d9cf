// Modules stay in the mode (training or evaluation) that their owner has set for each, whatever the trainer
// computes in between.
#include <gmock/gmock.h>

#include "tests/support/temporary_folder.h"
#include "tests/unit/train/frozen_model.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/train/run/run.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

data::DataSource small_data() {
  const auto split = [](std::uint64_t number) {
    return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
        .num_samples = 64, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = number});
  };
  return {.name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
}

RunConfig config_of(int stages) {
  RunConfig config;
  config.train.global_batch = 32;
  config.train.accumulation = stages == 1 ? 2 : 1;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.9;
  config.parallel.pipeline = stages;
  config.parallel.microbatches = stages == 1 ? 0 : 2;
  return config;
}

bool holds_norm(const Trainer& trainer) { return trainer.pipeline().has_first_stage(); }

class ModuleModes : public testing::TestWithParam<int> {};

TEST_P(ModuleModes, FrozenModelKeepsItsModes) {
  for (const char* partition : {"parameters", "time"}) {
    SCOPED_TRACE(partition);
    RunConfig config = config_of(GetParam());
    config.parallel.partition = partition;
    const data::DataSource data = small_data();
    comm::run_ranks_as_threads(GetParam(), [&](comm::Context& context) {
      const auto own = std::make_shared<test::FrozenNormModel>(36, 4);
      own->freeze();
      Trainer trainer(config, context, data, own);
      EXPECT_TRUE(own->is_frozen()) << "behind the constructor";
      trainer.step();
      trainer.step();
      EXPECT_TRUE(own->is_frozen()) << "behind steps";
      if (!holds_norm(trainer)) return;
      EXPECT_EQ(own->running_mean().abs().max().item<float>(), 0) << "the norm has trained";
    });
  }
}

TEST_P(ModuleModes, OutliveAnEvaluation) {
  const data::DataSource data = small_data();
  comm::run_ranks_as_threads(GetParam(), [&](comm::Context& context) {
    const auto own = std::make_shared<test::FrozenNormModel>(36, 4);
    Trainer trainer(config_of(GetParam()), context, data, own);
    own->freeze();
    trainer.evaluate();
    EXPECT_TRUE(own->is_frozen());
    trainer.step();
    if (!holds_norm(trainer)) return;
    EXPECT_EQ(own->running_mean().abs().max().item<float>(), 0) << "the norm has trained";
  });
}

TEST_P(ModuleModes, ModesSetAtStartLast) {
  const test::TemporaryFolder folder;
  RunConfig config = config_of(GetParam());
  config.run = {.name = "frozen", .folder = folder.path().string()};
  config.data.name = "synthetic";
  config.train.global_batch = 512;
  config.train.max_steps = 6;
  config.eval.every_steps = 2;
  comm::run_ranks_as_threads(GetParam(), [&](comm::Context& context) {
    const auto own = std::make_shared<test::FrozenNormModel>(784, 10);
    bool first = false;
    RunPlan plan{.model = own};
    plan.callbacks.on_start = [&](Trainer& trainer) {
      own->freeze();
      first = holds_norm(trainer);
    };
    run_training(config, context, plan);
    EXPECT_TRUE(own->is_frozen());
    if (first) {
      EXPECT_EQ(own->running_mean().abs().max().item<float>(), 0) << "the norm has trained";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, ModuleModes, testing::Values(1, 2));

}  // namespace
}  // namespace trireme::train
