// A split backward of every kind of graph, compared with a whole backward.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "tests/unit/parallel/stage_layers.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/model/model.h"
#include "trireme/parallel/pipeline/internal/stage.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using test::expect_same;
using test::numbers;
using test::one;
using test::Own;
using test::Tensors;
using test::tokens;
using test::values;

constexpr int kPasses = 3;

struct Case {
  std::string name;
  std::function<std::vector<model::Layer>()> layers;
  std::function<at::Tensor(int microbatch)> input;
  bool last = false;       ///< a loss follows
  bool is_divided = true;  ///< all of the backward
};

std::vector<model::Layer> part_of(const model::ModelOptions& options, std::vector<std::int64_t> shape,
                                  std::size_t first, std::size_t last) {
  const auto model = model::make_model(options, shape, 20, /*seed=*/3);
  std::vector<model::Layer> layers = model->layers();
  layers = {layers.begin() + static_cast<std::ptrdiff_t>(first),
            layers.begin() + static_cast<std::ptrdiff_t>(last)};
  for (model::Layer& layer : layers)  // the layers use the model
    layer.forward = [model, forward = layer.forward](const at::Tensor& x) { return forward(x); };
  return layers;
}

const model::ModelOptions kGpt = {.name = "gpt", .layers = 2, .heads = 2, .width = 16};
const model::ModelOptions kResnet = {.name = "resnet18"};

std::vector<Case> cases() {
  return {
      {"Linear",
       [] {
         return std::vector{one(nn::Linear(6, 5)), one(nn::Tanh()), one(nn::Linear(5, 4))};
       },
       values({7, 6})},
      {"LinearOfSequences",
       [] {
         return std::vector{one(nn::Linear(6, 5)), one(nn::Linear(nn::LinearOptions(5, 4).bias(false)))};
       },
       values({2, 7, 6})},
      {"Convolution",
       [] {
         return std::vector{one(nn::Conv2d(nn::Conv2dOptions(4, 8, 3).stride(2).padding(1))), one(nn::ReLU()),
                            one(nn::Conv2d(8, 6, 1))};
       },
       values({5, 4, 9, 9})},
      {"ConvolutionInOneDim",
       [] {
         return std::vector{one(nn::Conv1d(4, 8, 3)), one(nn::Conv1d(nn::Conv1dOptions(8, 8, 3).groups(2)))};
       },
       values({5, 4, 19})},
      {"TransposedConvolution", [] { return std::vector{one(nn::ConvTranspose2d(4, 3, 3))}; },
       values({5, 4, 6, 6})},
      {"ConvolutionByTheRule",
       [] {
         return std::vector{one(nn::Conv2d(64, 32, 1)), one(nn::ReLU()), one(nn::Conv2d(32, 64, 1))};
       },
       values({8, 64, 2, 2})},
      {"LayerNorm",
       [] {
         return std::vector{one(nn::LayerNorm(nn::LayerNormOptions({6}))), one(nn::Linear(6, 6))};
       },
       values({3, 7, 6})},
      {"GroupNorm",
       [] {
         return std::vector{one(nn::GroupNorm(2, 6)), one(nn::ReLU())};
       },
       values({3, 6, 5, 5})},
      {"BatchNorm",
       [] {
         return std::vector{one(nn::BatchNorm2d(6)), one(nn::ReLU()), one(nn::BatchNorm2d(6))};
       },
       values({4, 6, 5, 5})},
      {"Embedding",
       [] {
         return std::vector{one(nn::Embedding(20, 6)), one(nn::Linear(6, 4))};
       },
       tokens},
      {"EmbeddingAlone", [] { return std::vector{one(nn::Embedding(20, 6))}; }, tokens},
      {"Dropout",
       [] {
         return std::vector{one(nn::Linear(6, 6)), one(nn::Dropout(0.5)), one(nn::Linear(6, 6))};
       },
       values({7, 6})},
      {"Lstm",
       Own{[](const at::Tensor& x, const Tensors& p) {
             return std::get<0>(at::lstm(x, {torch::zeros({1, 3, 4}), torch::zeros({1, 3, 4})}, p, true, 1, 0,
                                         true, false, false));
           },
           {{16, 6}, {16, 4}, {16}, {16}}},
       values({5, 3, 6}), false, false},
      {"LearntQueries",
       Own{[](const at::Tensor& x, const Tensors& p) {
             const at::Tensor keys = x.reshape({2, 7, 2, 3}).transpose(1, 2);
             return at::scaled_dot_product_attention(p[0].expand({2, 2, 5, 3}), keys, keys);
           },
           {{2, 5, 3}}},
       values({2, 7, 6}), false, false},
      {"Residual",
       Own{[](const at::Tensor& x, const Tensors& p) {
             const at::Tensor h = x + (x.matmul(p[0])).relu();
             return h + at::linear(h, p[1], p[2]) + p[3];
           },
           {{6, 6}, {6, 6}, {6}, {6}}},
       values({7, 6})},
      {"Transposed", Own{[](const at::Tensor& x, const Tensors& p) { return x.t() * p[0]; }, {{7}}},
       values({7, 6})},
      {"Positions",
       Own{[](const at::Tensor& x, const Tensors& p) {
             return (x + at::embedding(p[0], torch::arange(7))).mul(p[1].exp());
           },
           {{7, 6}, {6}}},
       values({2, 7, 6})},
      {"TiedTwice",
       Own{[](const at::Tensor& x, const Tensors& p) {
             const at::Tensor t = p[0].t();
             return x.matmul(t).tanh().matmul(p[0]).matmul(t) + p[0].sum();
           },
           {{6, 6}}},
       values({7, 6})},
      {"WeightsMadeOfInputs",
       Own{[](const at::Tensor& x, const Tensors& p) {
             return x.matmul(x.t().matmul(p[0])).matmul(p[1].softmax(0));
           },
           {{7, 5}, {5, 4}}},
       values({7, 6})},
      {"OverwrittenSlices",
       Own{[](const at::Tensor& x, const Tensors& p) {
             at::Tensor all = x.clone();
             all.slice(1, 0, 3).copy_(x.matmul(p[0])).mul_(p[1]);
             return all;
           },
           {{6, 3}, {3}}},
       values({7, 6})},
      {"SeveralOutputsOfACut",
       Own{[](const at::Tensor& x, const Tensors& p) {
             const auto found = at::linalg_lstsq(p[0], x, {}, "gels");
             return std::get<0>(found).sum(0) + std::get<1>(found);
           },
           {{7, 3}}},
       values({7, 6})},
      {"SeveralOutputs",
       Own{[](const at::Tensor& x, const Tensors& p) {
             const auto parts = x.matmul(p[0]).unbind(1);
             return parts[0] * parts[2] + p[1];
           },
           {{6, 3}, {7}}},
       values({7, 6})},
      {"GptFirst", [] { return part_of(kGpt, {8}, 0, 2); }, tokens},
      {"GptMiddle", [] { return part_of(kGpt, {8}, 1, 3); }, values({2, 8, 16})},
      {"GptLast", [] { return part_of(kGpt, {8}, 2, 4); }, values({2, 8, 16}), true},
      {"GptWhole", [] { return part_of(kGpt, {8}, 0, 4); }, tokens, true},
      {"ResnetFirst",
       [] {
         return part_of(kResnet, {3, 32, 32}, 0, 4);
       },
       values({2, 3, 32, 32})},
      {"ResnetLast",
       [] {
         return part_of(kResnet, {3, 32, 32}, 8, 10);
       },
       values({2, 512, 2, 2}), true},
  };
}

void PrintTo(const Case& what, std::ostream* out) { *out << what.name; }

struct GraphGradients {
  Tensors of_inputs = Tensors(kPasses);
  std::map<std::string, at::Tensor> of_parameters = {};
};

struct Way {
  bool split = false;
  bool recompute = false;
  std::vector<int> order = {};  ///< order in which micro-batches add to the gradients of parameters
};

/// Runs the forwards of all micro-batches first, and starts without gradients.
GraphGradients train(const Case& what, const std::vector<model::Layer>& layers, const Way& way) {
  torch::manual_seed(5);
  for (const model::Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters) parameter.mutable_grad().reset();
  }
  Stage stage(layers, {.recompute = way.recompute});
  if (what.last) stage.set_head([](const at::Tensor& output, int) { return output.square().mean(); });
  Tensors outputs, gradients;
  for (int m = 0; m < kPasses; ++m) {
    outputs.push_back(stage.forward(m, what.input(m)));
    gradients.push_back(what.last ? torch::full({}, 0.5) : numbers(outputs.back().sizes(), 7 + m));
  }
  GraphGradients outcome;
  const auto at = [](int m) { return static_cast<std::size_t>(m); };
  if (way.split) {
    for (int m = 0; m < kPasses; ++m) outcome.of_inputs[at(m)] = stage.backward_input(m, gradients[at(m)]);
  }
  EXPECT_EQ(stage.num_live(), kPasses) << "until their weights' gradients are there";
  for (const int m : way.order) {
    if (way.split) stage.backward_weight(m);
    if (!way.split) outcome.of_inputs[at(m)] = stage.backward(m, gradients[at(m)]);
  }
  EXPECT_EQ(stage.num_live(), 0);
  EXPECT_EQ(stage.unsplit().empty(), what.is_divided || !way.split);
  for (const model::Layer& layer : stage.layers()) {
    for (const auto& [name, parameter] : layer.parameters) {
      std::string key = name;
      while (outcome.of_parameters.contains(key)) key += "'";
      outcome.of_parameters[key] = parameter.grad();
    }
  }
  return outcome;
}

void expect_same(const GraphGradients& found, const GraphGradients& expected) {
  for (std::size_t m = 0; m < expected.of_inputs.size(); ++m)
    expect_same(found.of_inputs[m], expected.of_inputs[m], text("input ", m));
  ASSERT_EQ(found.of_parameters.size(), expected.of_parameters.size());
  for (const auto& [name, gradient] : expected.of_parameters)
    expect_same(found.of_parameters.at(name), gradient, name);
}

class EveryGraph : public testing::TestWithParam<std::tuple<Case, bool>> {
 protected:
  void SetUp() override { at::set_num_threads(1); }  // the number of threads that the scope applies to
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  const int threads_ = at::get_num_threads();
  const model::ConvolutionScope convolutions_{model::ConvolutionChoice::onednn()};
};

TEST_P(EveryGraph, HasGradientsOfWholeBackwardBitwise) {
  const auto& [what, recompute] = GetParam();
  const std::vector<model::Layer> layers = what.layers();
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, std::vector{2, 0, 1}})
    expect_same(train(what, layers, {.split = true, .recompute = recompute, .order = order}),
                train(what, layers, {.split = false, .recompute = recompute, .order = order}));
}

INSTANTIATE_TEST_SUITE_P(Of, EveryGraph, testing::Combine(testing::ValuesIn(cases()), testing::Bool()),
                         [](const auto& param) {
                           return std::get<0>(param.param).name +
                                  (std::get<1>(param.param) ? "Recomputed" : "");
                         });

TEST(SplitBackwardOfAGraph, ParametersThatAreFixedGetNoGradient) {
  const auto layers = [] {
    std::vector<model::Layer> chain = {one(nn::Linear(6, 5)), one(nn::Linear(5, 4))};
    for (auto& [name, parameter] : chain[0].parameters) parameter.requires_grad_(false);
    return chain;
  };
  const Case some{.name = "some", .layers = layers, .input = values({7, 6})};
  const auto compare = [](const Case& what) {
    const std::vector<int> order = {0, 1, 2};
    const auto chain = what.layers();
    expect_same(train(what, chain, {.split = true, .order = order}),
                train(what, chain, {.split = false, .order = order}));
  };
  compare(some);
  const Case all{.name = "all", .layers = [&] { return std::vector{layers()[0]}; }, .input = values({7, 6})};
  compare(all);
}

}  // namespace
}  // namespace trireme::parallel
