// A model is built without memory. Layers get their memory one by one, in place.
#include "trireme/model/deferred.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/utils.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/model/initialise.h"
#include "trireme/model/model.h"

namespace trireme::model {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// A user-defined module without support for deferred initialization.
struct Net : torch::nn::Module {
  explicit Net(std::int64_t width = 6) : hidden(width, width) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("hidden", hidden);
  }
  at::Tensor forward(const at::Tensor& input) {
    return hidden->forward(norm->forward(conv->forward(input)).flatten(1).relu());
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 1, 1)};
  torch::nn::BatchNorm2d norm{1};
  torch::nn::Linear hidden;
};

Layer layer_of(const torch::nn::Module& module) {
  Layer layer;
  layer.name = "all";
  for (const auto& item : module.named_parameters()) layer.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) layer.buffers.emplace_back(item.key(), item.value());
  return layer;
}

TEST(Deferred, AnyModuleIsBuiltWithoutMemory) {
  // 40 GB.
  const auto large = deferred([] { return torch::nn::Linear(100'000, 100'000); });
  EXPECT_EQ(large->weight.sizes(), (std::vector<std::int64_t>{100'000, 100'000}));
  EXPECT_TRUE(large->weight.requires_grad());
  EXPECT_TRUE(is_deferred(*large));
  EXPECT_FALSE(at::ones({2}).is_meta());
  const auto net = deferred([] { return std::make_shared<Net>(); });
  for (const at::Tensor& tensor : net->parameters()) EXPECT_TRUE(tensor.is_meta());
  for (const at::Tensor& tensor : net->buffers()) EXPECT_TRUE(tensor.is_meta());
}

TEST(Deferred, ForwardOnShapesPredictsOutputs) {
  const auto net = deferred([] { return std::make_shared<Net>(); });
  Layer all = layer_of(*net);
  all.forward = [&](const at::Tensor& input) { return net->forward(input); };
  EXPECT_EQ(outputs_on_shapes({all}, at::ones({5, 1, 2, 3}))->sizes(), (std::vector<std::int64_t>{5, 6}));
  for (const std::string& name : model_names()) {
    SCOPED_TRACE(name);
    const bool is_text = name == "gpt";
    const ModelOptions options{.name = name, .layers = 2};
    const auto shape = is_text ? std::vector<std::int64_t>{8} : std::vector<std::int64_t>{3, 36, 33};
    const auto make = [&] { return make_model(options, shape, 10, 7); };
    std::vector<std::int64_t> batch = {2};
    batch.insert(batch.end(), shape.begin(), shape.end());
    const at::Tensor input = at::ones(batch, at::TensorOptions(is_text ? at::kLong : at::kFloat));
    const auto model = deferred(make);
    EXPECT_EQ(outputs_on_shapes(model->layers(), input)->sizes(), make()->forward(input).sizes());
    EXPECT_TRUE(is_deferred(*model)) << "what was borrowed is given back";
  }
}

TEST(Deferred, MaterializedModelComputesAndLearns) {
  const auto net = deferred([] { return std::make_shared<Net>(); });
  materialise(layer_of(*net));
  initialise(*net->hidden, 1);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->conv->parameters()) parameter.fill_(1);
    for (at::Tensor& parameter : net->norm->parameters()) parameter.fill_(1);
  }
  EXPECT_FALSE(is_deferred(*net));
  EXPECT_TRUE(net->hidden->weight.is_cpu());
  EXPECT_EQ(net->norm->running_var.item<double>(), 1);
  EXPECT_EQ(net->norm->running_mean.item<double>(), 0);
  net->forward(at::ones({5, 1, 2, 3})).sum().backward();
  EXPECT_TRUE(net->hidden->weight.grad().is_cpu());
  Net plain;
  initialise(*plain.hidden, 1);
  EXPECT_TRUE(net->hidden->weight.equal(plain.hidden->weight));
}

TEST(Deferred, ShippedModelsHaveValuesOfDirectBuild) {
  for (const std::string& name : model_names()) {
    SCOPED_TRACE(name);
    const ModelOptions options{.name = name, .layers = 2};
    const std::vector<std::int64_t> shape =
        name == "gpt" ? std::vector<std::int64_t>{8} : std::vector<std::int64_t>{1, 16, 16};
    const auto whole = make_model(options, shape, 10, 7);
    const auto later = deferred([&] { return make_model(options, shape, 10, 7); });
    ASSERT_TRUE(is_deferred(*later));
    for (const Layer& layer : later->layers()) materialise(layer);
    later->initialise(7);
    const auto expected = whole->named_parameters();
    for (const auto& item : later->named_parameters())
      EXPECT_TRUE(item.value().equal(expected[item.key()])) << item.key();
    for (const auto& item : later->named_buffers())
      EXPECT_TRUE(item.value().equal(whole->named_buffers()[item.key()])) << item.key();
  }
}

TEST(Deferred, InitializedLayersKeepTheirValues) {
  for (const std::string& name : model_names()) {
    SCOPED_TRACE(name);
    const ModelOptions options{.name = name, .layers = 2};
    const std::vector<std::int64_t> shape =
        name == "gpt" ? std::vector<std::int64_t>{8} : std::vector<std::int64_t>{1, 16, 16};
    const auto whole = make_model(options, shape, 10, 7);
    const auto later = deferred([&] { return make_model(options, shape, 10, 7); });
    const std::vector<Layer> layers = later->layers();
    std::vector<at::Tensor> learned;
    for (const Layer& layer : layers) {
      materialise(layer);
      const FirstValuesOf those({layer});
      later->initialise(7);
      for (const auto& [parameter, tensor] : layer.parameters) {
        EXPECT_TRUE(tensor.equal(whole->named_parameters()[parameter])) << parameter;
        const at::NoGradGuard no_grad;
        // Two layers of the GPT share it.
        if (parameter == "transformer.wte.weight") continue;
        // As with a layer that is gathered for each use, the size may change.
        at::Tensor(tensor).set_data(at::full({3}, 5.0F));
        learned.push_back(tensor);
      }
    }
    ASSERT_FALSE(learned.empty());
    for (const at::Tensor& tensor : learned) EXPECT_TRUE(tensor.equal(at::full({3}, 5.0F)));
  }
}

/// One of each libtorch layer with parameters.
struct EachLayer : torch::nn::Module {
  EachLayer() {
    namespace nn = torch::nn;
    register_module("linear", nn::Linear(40, 50));
    register_module("bilinear", nn::Bilinear(20, 30, 10));
    register_module("conv1", nn::Conv1d(8, 16, 5));
    register_module("conv3", nn::Conv3d(2, 8, 3));
    register_module("transposed", nn::ConvTranspose2d(16, 8, 3));
    register_module("batch_norm", nn::BatchNorm2d(30));
    register_module("instance_norm", nn::InstanceNorm2d(nn::InstanceNorm2dOptions(30).affine(true)));
    register_module("layer_norm", nn::LayerNorm(nn::LayerNormOptions({5, 6})));
    register_module("group_norm", nn::GroupNorm(2, 30));
    register_module("embedding", nn::Embedding(nn::EmbeddingOptions(60, 20).padding_idx(3)));
    register_module("bag", nn::EmbeddingBag(60, 20));
    register_module("lstm", nn::LSTM(nn::LSTMOptions(10, 40).num_layers(2).bidirectional(true)));
    register_module("gru", nn::GRU(10, 40));
    register_module("rnn", nn::RNN(10, 40));
    register_module("lstm_cell", nn::LSTMCell(10, 40));
    register_module("gru_cell", nn::GRUCell(10, 40));
    register_module("rnn_cell", nn::RNNCell(10, 40));
    register_module("prelu", nn::PReLU());
    register_module("attention",
                    nn::MultiheadAttention(nn::MultiheadAttentionOptions(32, 4).add_bias_kv(true)));
    register_module("other_sizes",
                    nn::MultiheadAttention(nn::MultiheadAttentionOptions(32, 4).kdim(24).vdim(16)));
    register_module("encoder", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(32, 4)));
    register_module("transformer", nn::Transformer(nn::TransformerOptions(16, 2, 1, 1).dim_feedforward(32)));
    register_module("softmax",
                    nn::AdaptiveLogSoftmaxWithLoss(nn::AdaptiveLogSoftmaxWithLossOptions(32, 60, {20, 40})));
  }
};

// The reference is libtorch itself: constants are equal, and random values have the same spread.
TEST(Deferred, LibtorchLayersBeginLikeDirectBuild) {
  at::manual_seed(1);
  const EachLayer at_once;
  const auto later = deferred([] { return std::make_shared<EachLayer>(); });
  materialise(layer_of(*later));
  initialise(*later, 1);
  const auto found = later->named_parameters();
  for (const auto& item : at_once.named_parameters()) {
    SCOPED_TRACE(item.key());
    const at::Tensor expected = item.value().detach(), values = found[item.key()].detach();
    if (expected.eq(expected.flatten()[0]).all().item<bool>()) {
      EXPECT_TRUE(values.equal(expected));
      continue;
    }
    // The standard error of the spread of n numbers is at most 1 / sqrt(2 n) of it, on both sides.
    const double n = static_cast<double>(values.numel()), spread = expected.std().item<double>();
    EXPECT_NEAR(values.std().item<double>(), spread, 5 * spread / std::sqrt(n));
    EXPECT_NEAR(values.mean().item<double>(), 0, 5 * spread / std::sqrt(n));
    const double largest = expected.abs().max().item<double>();
    EXPECT_LE(values.abs().max().item<double>(), 2 * largest);
  }
  EXPECT_TRUE(found["embedding.weight"][3].eq(0).all().item<bool>());
}

TEST(Deferred, BorrowedMemoryIsGivenBack) {
  const torch::nn::Linear linear = deferred([] { return torch::nn::Linear(4, 4); });
  {
    const BorrowedMemory memory(layer_of(*linear));
    EXPECT_TRUE(torch::nn::Linear(linear)->forward(at::ones({1, 4})).is_cpu());
  }
  EXPECT_TRUE(is_deferred(*linear));
}

TEST(Deferred, RejectsBufferWithValueByName) {
  struct Masked : torch::nn::Module {
    Masked() { mask = register_buffer("mask", at::ones({4, 4}).tril()); }
    at::Tensor mask;
  };
  const auto masked = deferred([] { return std::make_shared<Masked>(); });
  EXPECT_THAT([&] { materialise(layer_of(*masked)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("buffer 'mask'")));
}

}  // namespace
}  // namespace trireme::model
