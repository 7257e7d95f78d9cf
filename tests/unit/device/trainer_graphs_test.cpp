// train.graph: a trainer with captured layers has the bits of one without graphs.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/stand_in_device_graphs.h"
#include "trireme/base/error.h"
#include "trireme/data/producer.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

RunConfig graphed_config() {
  RunConfig config;
  config.data.name = "synthetic";
  config.model.hidden = {8};
  config.train = {.global_batch = 64, .clip_norm = 0, .graph = "on"};
  config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0.9};
  config.comm.device = test::kStandInDevice;
  config.run.log_every_steps = 1;
  return config;
}

struct TrainedSteps {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  Evaluation evaluation;
  std::int64_t replays = 0;
};

TrainedSteps train_steps(const RunConfig& config, int num_steps = 8) {
  TrainedSteps trained;
  const std::int64_t before = test::StandInDeviceGraph::num_replays;
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               const data::DataSource data = open_data(config);
                               Trainer trainer(config, context, data);
                               for (int i = 0; i < num_steps; ++i) {
                                 if (const auto report = trainer.step())
                                   trained.losses.push_back(report->loss);
                               }
                               trained.evaluation = trainer.evaluate();
                               for (const auto& [name, weight] : trainer.parameters())
                                 trained.weights.push_back(weight.detach().cpu());
                             },
                             {.device = test::kStandInDevice});
  trained.replays = test::StandInDeviceGraph::num_replays - before;
  return trained;
}

struct GraphedMode {
  const char* name;
  std::function<void(RunConfig&)> change;
  int min_replays = 10;  ///< of forwards and backwards in five steps
};

const GraphedMode kGraphedModes[] = {
    {"Plain", [](RunConfig&) {}},
    {"Accumulated", [](RunConfig& config) { config.train.accumulation = 4; }, 50},
    {"Clipped", [](RunConfig& config) { config.train.clip_norm = 0.01; }},
    {"Bf16", [](RunConfig& config) { config.train.precision = "bf16"; }},
    {"Fp16",
     [](RunConfig& config) {
       config.train.precision = "fp16";
       config.scaler = {.initial = 0x1p24, .interval = 2};
     }},
    {"MovingAverage", [](RunConfig& config) { config.train.ema_decay = 0.9; }},
    {"NoiseScale",
     [](RunConfig& config) {
       config.train.noise_scale_every_steps = 1;
       config.train.accumulation = 2;
     }},
    {"Convolutions",
     [](RunConfig& config) {
       config.model.name = "cnn";
       config.optimizer.lr = 0.001;
     }},
    {"AdamW", [](RunConfig& config) { config.optimizer = {.name = "adamw"}; }},
    {"Zero2", [](RunConfig& config) { config.parallel.zero = 2; }},
    {"BatchRamp",
     [](RunConfig& config) {
       config.train.batch_ramp_sizes = {32};
       config.train.batch_ramp_steps = {4};
     },
     4},
    {"StateInPinnedMemory",
     [](RunConfig& config) {
       config.optimizer.name = "adamw";
       config.offload.optimizer = "host";
       config.offload.part_mib = 0.001;
     }},
};

std::ostream& operator<<(std::ostream& out, const GraphedMode& mode) { return out << mode.name; }

class GraphedTrainer : public testing::TestWithParam<GraphedMode> {
 protected:
  static void SetUpTestSuite() { test::register_stand_in_graphs(); }
};

TEST_P(GraphedTrainer, HasBitsOfPlainTrainer) {
  RunConfig config = graphed_config();
  GetParam().change(config);
  const TrainedSteps graphed = train_steps(config);
  config.train.graph = "off";
  const TrainedSteps plain = train_steps(config);
  EXPECT_GE(graphed.replays, GetParam().min_replays);
  EXPECT_EQ(plain.replays, 0);
  EXPECT_THAT(graphed.losses, testing::Pointwise(testing::NanSensitiveDoubleEq(), plain.losses));
  EXPECT_EQ(graphed.evaluation.loss, plain.evaluation.loss);
  ASSERT_EQ(graphed.weights.size(), plain.weights.size());
  for (std::size_t i = 0; i < plain.weights.size(); ++i)
    EXPECT_TRUE(graphed.weights[i].equal(plain.weights[i]))
        << "weight " << i << ", by " << (graphed.weights[i] - plain.weights[i]).abs().max().item<double>();
}

INSTANTIATE_TEST_SUITE_P(Of, GraphedTrainer, testing::ValuesIn(kGraphedModes),
                         [](const auto& row) { return std::string(row.param.name); });

/// The first one is destroyed while the second one trains.
TEST(TrainerGraphs, TwoTrainersOfThreadKeepBits) {
  test::register_stand_in_graphs();
  RunConfig config = graphed_config(), other = graphed_config();
  other.run.seed = config.run.seed + 1;
  std::vector<at::Tensor> weights;
  const std::int64_t before = test::StandInDeviceGraph::num_replays;
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               const data::DataSource data = open_data(config);
                               auto first = std::make_unique<Trainer>(config, context, data);
                               Trainer second(other, context, data);
                               for (int i = 0; i < 8; ++i) {
                                 if (i < 5) first->step();
                                 if (i == 5) first.reset();
                                 second.step();
                               }
                               second.evaluate();
                               for (const auto& [name, weight] : second.parameters())
                                 weights.push_back(weight.detach().cpu());
                             },
                             {.device = test::kStandInDevice});
  EXPECT_GE(test::StandInDeviceGraph::num_replays - before, 2 * 2 + 2 * 5);
  other.train.graph = "off";
  const TrainedSteps plain = train_steps(other);
  ASSERT_EQ(weights.size(), plain.weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(weights[i].equal(plain.weights[i])) << i;
}

struct RejectedGraph {
  std::function<void(RunConfig&)> change;
  const char* says;
};

TEST(TrainerGraphs, RejectModesWithHostWork) {
  const RejectedGraph kRejected[] = {
      {[](RunConfig& config) { config.parallel.zero = 3; }, "it gathers weights before each use"},
      {[](RunConfig& config) { config.train.recompute_layers = {"fc1"}; }, "the host restores random states"},
      {[](RunConfig& config) { config.offload.activations = "host"; }, "the host copies activations"},
  };
  for (const RejectedGraph& row : kRejected) {
    RunConfig config = graphed_config();
    row.change(config);
    EXPECT_THAT(
        [&] { resolve_plan(config, 1); },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("train.graph = \"on\" needs"), HasSubstr(row.says))));
    config.train.graph = "auto";
    EXPECT_EQ(train_steps(config).replays, 0) << row.says;
  }
}

TEST(TrainerGraphs, NeedGraphsOfDevice) {
  RunConfig config = graphed_config();
  config.comm.device = "cpu";
  const auto make = [&] {
    comm::run_ranks_as_threads(1, [&](comm::Context& context) {
      const data::DataSource data = open_data(config);
      Trainer(config, context, data).step();
    });
  };
  EXPECT_THAT(make, ThrowsMessage<InvalidArgument>(
                        AllOf(HasSubstr("train.graph = \"on\""), HasSubstr("device \"cpu\" has no graphs"))));
  config.train.graph = "auto";
  EXPECT_NO_THROW(make());
}

}  // namespace
}  // namespace trireme::train
