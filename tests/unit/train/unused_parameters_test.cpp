// A user's model with parameters that some steps do not reach: parallel.unused_parameters.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/model/initialise.h"
#include "trireme/train/run/run.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/model_state.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// `last_batch`: samples of the smaller third batch.
data::DataSource expert_data(std::int64_t last_batch) {
  const auto split = [&](std::uint64_t number) {
    return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{.num_samples = 32 + last_batch,
                                                                           .num_classes = 4,
                                                                           .height = 6,
                                                                           .width = 6,
                                                                           .seed = 3,
                                                                           .split = number});
  };
  return {.name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
}

/// Samples whose first pixel is above a threshold also go through an expert. One layer is never used.
class WithExpert : public model::Model {
 public:
  explicit WithExpert(float threshold) : threshold_(threshold) {
    base_ = register_module("base", torch::nn::Linear(36, 4));
    expert_ = register_module("expert", torch::nn::Linear(36, 4));
    register_module("never", torch::nn::Linear(3, 3));
    model::initialise(*this, /*seed=*/5);
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor pixels = input.flatten(1);
    at::Tensor logits = base_->forward(pixels);
    const at::Tensor rows = (pixels.select(1, 0) > threshold_).nonzero().flatten();
    if (rows.numel() == 0) return logits;
    return logits.index_add(0, rows, expert_->forward(pixels.index_select(0, rows)));
  }

 private:
  float threshold_;
  torch::nn::Linear base_ = nullptr, expert_ = nullptr;
};

constexpr float kAllSamples = std::numeric_limits<float>::lowest();

/// A threshold below two samples of the training data. Some steps have one of them, others none.
float two_samples(const data::DataSource& data) {
  std::vector<float> pixels;
  for (std::int64_t i = 0; i < data.train->size(); ++i)
    pixels.push_back(data::indexed(data.train)->get(i).input->flatten()[0].item<float>());
  std::sort(pixels.rbegin(), pixels.rend());
  return pixels[2];
}

RunConfig expert_config(const std::string& unused_parameters = "find") {
  RunConfig config;
  config.train.epochs = 3;
  config.train.global_batch = 16;
  config.run.log_every_steps = 1;
  config.optimizer = {.name = "adamw", .lr = 0.01, .weight_decay = 0.1};
  config.parallel.unused_parameters = unused_parameters;
  return config;
}

struct ExpertOutcome {
  std::vector<bool> reached;  ///< for each step: whether the expert has a gradient
  std::vector<double> losses;
  checkpoint::TensorMap weights;
};

/// Trains from step `begin` + 1 to the end. Returns the results of rank 0.
ExpertOutcome train_on(int ranks, const RunConfig& config, float threshold, std::int64_t last_batch,
                       std::int64_t begin = 0) {
  ExpertOutcome outcome;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    const data::DataSource data = expert_data(last_batch);
    Trainer trainer(config, context, data, std::make_shared<WithExpert>(threshold));
    ExpertOutcome mine;
    trainer.on_gradients([&](const optim::NamedTensors& gradients) {
      mine.reached.push_back(gradients[2].second.defined());
      EXPECT_EQ(gradients[2].first, "expert.weight");
      EXPECT_FALSE(gradients[4].second.defined()) << gradients[4].first;
    });
    trainer.seek(begin);
    while (!trainer.finished()) {
      trainer.step();
      mine.losses.push_back(trainer.last_report()->loss);
    }
    for (const auto& [name, tensor] : state_of(trainer.model())) mine.weights[name] = tensor.clone();
    if (context.is_main()) outcome = std::move(mine);
  });
  return outcome;
}

void expect_equal(const ExpertOutcome& found, const ExpertOutcome& expected) {
  EXPECT_EQ(found.reached, expected.reached);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < found.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << "step " << i + 1;
  for (const auto& [name, tensor] : expected.weights)
    EXPECT_TRUE(tensor.allclose(found.weights.at(name), 1e-4, 1e-5)) << name;
}

// With a last batch of 5, some parts of four ranks are empty. Those reach no parameters, not even the expert.
TEST(UnusedParameters, SearchMatchesNumbersOfOneRank) {
  RunConfig config = expert_config();
  config.train.clip_norm = 0.5;
  config.train.ema_decay = 0.9;
  const float threshold = two_samples(expert_data(5));
  const ExpertOutcome expected = train_on(1, config, threshold, 5);
  EXPECT_THAT(expected.reached, AllOf(testing::Contains(true), testing::Contains(false)));
  EXPECT_LT(expected.losses.back(), expected.losses.front()) << "nothing was learnt";
  for (const int ranks : {2, 4}) {
    for (const std::int64_t accumulation : {1, 2}) {
      SCOPED_TRACE(text(ranks, " ranks, accumulation ", accumulation));
      config.train.accumulation = accumulation;
      expect_equal(train_on(ranks, config, threshold, 5), expected);
    }
  }
}

// Two ranks have no samples in the last batch. Their missing gradients there do not make parameters static.
TEST(UnusedParameters, StaticOnesAreLearntInFullStep) {
  const RunConfig config = expert_config("static");
  for (const std::int64_t begin : {0, 2}) {
    SCOPED_TRACE(text("behind step ", begin));
    const ExpertOutcome expected = train_on(1, config, kAllSamples, 2, begin);
    expect_equal(train_on(4, config, kAllSamples, 2, begin), expected);
  }
}

TEST(UnusedParameters, AreErrorWithNamesAndKey) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = expert_data(16);
    Trainer trainer(expert_config("error"), context, data, std::make_shared<WithExpert>(kAllSamples));
    EXPECT_THAT([&] { trainer.step(); },
                testing::ThrowsMessage<InvalidArgument>(AllOf(
                    HasSubstr("rank 0: 'never.weight', 'never.bias'; rank 1: 'never.weight', 'never.bias'"),
                    HasSubstr("parallel.unused_parameters to \"find\" or \"static\""))));
  });
}

TEST(UnusedParameters, VerifyFindsAUsersModelEqual) {
  for (const char* precision : {"fp32", "fp16"}) {
    SCOPED_TRACE(precision);
    RunConfig config = expert_config();
    config.train.precision = precision;
    std::optional<Comparison> verdict;
    comm::run_ranks_as_threads(4, [&](comm::Context& context) {
      const data::DataSource data = expert_data(5);
      const Comparison mine =
          verify(config, context, data, 9,
                 {.make_model = [&] { return std::make_shared<WithExpert>(two_samples(data)); }});
      if (context.is_main()) verdict = mine;
    });
    EXPECT_TRUE(verdict->bitwise()) << verdict->largest().describe();
  }
}

TEST(OwnModel, RejectsMisfittingDataByModelType) {
  class Wrong : public model::Model {
    at::Tensor forward(const at::Tensor& input) override { return input.flatten(1); }
  };
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const data::DataSource data = expert_data(16);
    EXPECT_THAT([&] { Trainer(expert_config(), context, data, std::make_shared<Wrong>()); },
                testing::ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("the model of type "), HasSubstr("Wrong cannot take"))));
  });
}

TEST(OwnModel, OwnModelIsTrainedAndSaved) {
  const test::TemporaryFolder folder;
  RunConfig config = expert_config();
  config.run.folder = folder.path().string();
  config.data.name = "synthetic";
  config.train.max_steps = 2;
  class OfSynthetic : public model::Model {
   public:
    OfSynthetic() { layer_ = register_module("mine", torch::nn::Linear(784, 10)); }
    at::Tensor forward(const at::Tensor& input) override { return layer_->forward(input.flatten(1)); }

   private:
    torch::nn::Linear layer_ = nullptr;
  };
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    run_training(config, context, {.model = std::make_shared<OfSynthetic>()});
  });
  EXPECT_EQ(checkpoint::load_safetensors(folder / "run" / "model.safetensors").tensors.count("mine.weight"),
            1u);
}

}  // namespace
}  // namespace trireme::train
