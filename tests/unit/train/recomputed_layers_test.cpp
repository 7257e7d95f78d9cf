// Recomputed layers change no bit of the training on any mesh. An activation budget is observed.
#include "trireme/train/parts/recomputed_layers.h"

#include <ATen/ops/relu.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <mutex>

#include "trireme/base/error.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/parallel/allocated_bytes.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

data::DataSource data_of_layers(std::int64_t num_samples = 70) {
  const auto split = [&](std::uint64_t number) {
    return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
        .num_samples = num_samples, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = number});
  };
  return {.name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
}

RunConfig small_config() {
  RunConfig config;
  config.run.log_every_steps = 1;
  config.model.hidden = {12, 12, 12, 12, 12};
  config.train.epochs = 1;
  config.train.global_batch = 32;
  config.train.clip_norm = 0;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.9;
  config.parallel.partition = "parameters";
  return config;
}

/// Convolutions with batch norm and dropout, which a second forward could disturb.
class Net : public model::Model {
 public:
  at::Tensor forward(const at::Tensor& x) override { return head(second(first(x))); }
  std::vector<model::Layer> layers() override {
    return {
        model::make_layer(*this, "first", {conv1_.ptr(), norm1_.ptr()},
                          [this](const at::Tensor& x) { return first(x); }),
        model::make_layer(*this, "second", {conv2_.ptr(), norm2_.ptr(), drop_.ptr()},
                          [this](const at::Tensor& x) { return second(x); }),
        model::make_layer(*this, "head", {linear_.ptr()}, [this](const at::Tensor& x) { return head(x); })};
  }

 private:
  at::Tensor first(const at::Tensor& x) { return norm1_->forward(conv1_->forward(x)).relu_(); }
  at::Tensor second(const at::Tensor& x) {
    return drop_->forward(at::relu(norm2_->forward(conv2_->forward(x)))).flatten(1);
  }
  at::Tensor head(const at::Tensor& x) { return linear_->forward(x); }

  static torch::nn::Conv2d convolution(std::int64_t in) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, 4, 3).padding(1));
  }
  torch::nn::Conv2d conv1_ = register_module("conv1", convolution(1)),
                    conv2_ = register_module("conv2", convolution(4));
  torch::nn::BatchNorm2d norm1_ = register_module("norm1", torch::nn::BatchNorm2d(4)),
                         norm2_ = register_module("norm2", torch::nn::BatchNorm2d(4));
  torch::nn::Dropout drop_ = register_module("drop", torch::nn::Dropout(0.3));
  torch::nn::Linear linear_ = register_module("linear", torch::nn::Linear(4 * 36, 4));
};

std::map<std::string, at::Tensor> trained(const RunConfig& config) {
  std::map<std::string, at::Tensor> state;
  const data::DataSource data = data_of_layers();
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    torch::manual_seed(1);
    Trainer trainer(config, context, data, std::make_shared<Net>());
    while (!trainer.finished()) trainer.step();
    for (const checkpoint::Shard& shard : shards_of(trainer.model_state()))
      state[shard.name] = shard.tensor.clone();
  });
  return state;
}

TEST(RecomputedLayers, ChangeNoBitOfConvolutionsOrDropout) {
  for (const char* format : {"contiguous", "channels_last"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      for (const int chunks : {0, 2}) {
        SCOPED_TRACE(text(format, ", ", precision, ", chunks ", chunks));
        RunConfig config = small_config();
        config.train.memory_format = format;
        config.train.convolution = "aten";
        config.train.precision = precision;
        config.parallel.chunks = chunks;
        const auto plain = trained(config);
        config.train.recompute_layers = {"*"};
        const auto again = trained(config);
        ASSERT_EQ(plain.size(), again.size());
        for (const auto& [name, tensor] : plain) EXPECT_TRUE(tensor.equal(again.at(name))) << name;
      }
    }
  }
}

Comparison verdict_of_layers(int ranks, const RunConfig& config) {
  std::optional<Comparison> verdict;
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    const Comparison mine = verify(config, context, data_of_layers(), 2);
    const std::lock_guard lock(mutex);
    if (context.is_main()) verdict = mine;
  });
  return *verdict;
}

struct Mesh {
  const char* name;
  int ranks = 2, pipeline = 1, zero = 0;
  const char* schedule = "1f1b";
  bool recompute = false;
  bool in_order = true;
};

TEST(RecomputedLayers, MatchStoringRankOnEveryMesh) {
  for (const Mesh& mesh : {Mesh{.name = "dp2"}, Mesh{.name = "pp2", .pipeline = 2},
                           Mesh{.name = "pp2, whole stages too", .pipeline = 2, .recompute = true},
                           Mesh{.name = "pp2, zb-h1", .pipeline = 2, .schedule = "zb-h1", .in_order = false},
                           Mesh{.name = "dp2 x pp2", .ranks = 4, .pipeline = 2, .in_order = false},
                           Mesh{.name = "zero 1", .zero = 1}, Mesh{.name = "zero 2", .zero = 2},
                           Mesh{.name = "zero 3", .zero = 3}}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(text(mesh.name, ", ", precision));
      RunConfig config = small_config();
      config.train.precision = precision;
      config.train.recompute_layers = {"fc2", "fc3", "*5"};
      config.parallel.pipeline = mesh.pipeline;
      config.parallel.schedule = mesh.schedule;
      config.parallel.recompute = mesh.recompute;
      config.parallel.zero = mesh.zero;
      const Comparison verdict = verdict_of_layers(mesh.ranks, config);
      EXPECT_TRUE(verdict.equal()) << verdict.first()->describe();
      EXPECT_TRUE(verdict.bitwise() || !mesh.in_order);
    }
  }
}

/// The peak allocation of a step. With large micro-batches and narrow layers it is mostly activations.
std::int64_t peak_bytes(const RunConfig& config, const std::shared_ptr<model::Model>& own = nullptr) {
  std::int64_t peak = 0;
  const data::DataSource data = data_of_layers(4096);
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Trainer trainer(config, context, data, own);
    trainer.step();
    const parallel::AllocatedBytes allocated;
    trainer.step();
    peak = allocated.peak();
  });
  return peak;
}

/// Each block saves its input and three tensors of the same size.
class Deep : public model::Model {
 public:
  Deep() {
    for (int i = 0; i < 9; ++i)
      blocks_.push_back(register_module(text("block", i), torch::nn::Linear(36, i == 8 ? 4 : 36)));
  }
  std::vector<model::Layer> layers() override {
    std::vector<model::Layer> chain;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      chain.push_back(make_layer(*this, text("block ", i), {blocks_[i].ptr()},
                                 [block = blocks_[i]](const at::Tensor& x) mutable {
                                   return block->forward(x.flatten(1).sin().tanh().exp().sin().tanh());
                                 }));
    }
    return chain;
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor values = x;
    for (const model::Layer& layer : layers()) values = layer.forward(values);
    return values;
  }

 private:
  std::vector<torch::nn::Linear> blocks_;
};

TEST(RecomputedLayers, KeepTheirBudget) {
  constexpr std::int64_t kTensor = 1024 * 36 * 4, kMiB = 1 << 20;
  RunConfig config = small_config();
  config.train.global_batch = 1024;
  const std::int64_t plain = peak_bytes(config, std::make_shared<Deep>());
  EXPECT_GT(plain, 30 * kTensor);
  config.train.activation_budget = "1GiB";
  EXPECT_NEAR(static_cast<double>(peak_bytes(config, std::make_shared<Deep>())), static_cast<double>(plain),
              0.5 * kTensor)
      << "a budget that is kept anyhow costs nothing";
  // In addition to saved activations there are the gradients of a layer's input and output.
  for (const int budget : {4, 3, 2}) {
    config.train.activation_budget = text(budget, "MiB");
    const std::int64_t peak = peak_bytes(config, std::make_shared<Deep>());
    EXPECT_LT(peak, budget * kMiB + 4 * kTensor);
    EXPECT_GT(peak, (budget - 1) * kMiB) << "more was recomputed than the budget asks for";
  }
}

TEST(RecomputedLayers, RejectABudgetThatNothingReaches) {
  RunConfig config = small_config();
  config.train.activation_budget = "1 KiB";
  EXPECT_THAT(
      [&] { peak_bytes(config); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("train.activation_budget = \"1 KiB\": the least that "
                                                     "micro-batches of 32 samples need is"),
                                           HasSubstr("train.accumulation"))));
}

void expect_rejected(const RunConfig& config, const std::vector<std::string>& words) {
  try {
    peak_bytes(config);
    FAIL() << "nothing was refused";
  } catch (const InvalidArgument& error) {
    for (const std::string& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

TEST(RecomputedLayers, RejectUnknownLayersAndInvalidBudgets) {
  RunConfig config = small_config();
  config.train.recompute_layers = {"fc1", "fc12"};
  expect_rejected(config, {"train.recompute_layers: 'fc12' is the name of no layer", "'fc1', 'fc2', 'fc3'",
                           "a * stands for any text"});
  for (const char* budget : {"lots", "-1MiB", "0", "12 parsecs", "MiB", "1e999GiB"}) {
    config = small_config();
    config.train.activation_budget = budget;
    expect_rejected(config, {text("train.activation_budget = \"", budget, "\""), "512MiB"});
  }
  config.train.activation_budget = "1GiB";
  config.train.recompute_layers = {"*"};
  expect_rejected(config, {"leave one of the two out"});
  config.train.recompute_layers = {};
  config.parallel.recompute = true;
  expect_rejected(config, {"parallel.recompute = true", "leave one of the two out"});
}

}  // namespace
}  // namespace trireme::train
