// A chain that contains one module twice. Its parameters belong to two layers, under one name.
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "tests/unit/parallel/small_models.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
namespace nn = torch::nn;

struct RepeatedInside : nn::Module {
  explicit RepeatedInside(const nn::Linear& repeated) : linear(repeated) {
    register_module("before", linear);
    register_module("behind", linear);
  }
  at::Tensor forward(const at::Tensor& x) { return linear->forward(linear->forward(x).tanh()); }
  nn::Linear linear;
};

/// The repeated module is within one layer, or is two layers.
nn::Sequential with_repeated_module(bool in_one_layer) {
  const nn::Linear repeated(5, 5);
  nn::Sequential chain;
  if (in_one_layer) {
    chain->push_back(std::make_shared<RepeatedInside>(repeated));
  } else {
    chain->push_back(repeated);
    chain->push_back(nn::Tanh());
    chain->push_back(repeated);
  }
  chain->push_back(nn::Linear(5, 2));
  test::fill_parameters(*chain);
  return chain;
}

at::Tensor rows_of_repeated(int rank) { return test::numbers({4, 5}, 10 * rank); }
at::Tensor wanted_of_repeated(int rank) { return test::numbers({4, 2}, 10 * rank + 5); }

/// Parameters after three steps of one rank on the rows of two ranks.
std::map<std::string, at::Tensor> trained_by_one_rank(bool in_one_layer) {
  nn::Sequential net = with_repeated_module(in_one_layer);
  const at::Tensor x = at::cat({rows_of_repeated(0), rows_of_repeated(1)}),
                   y = at::cat({wanted_of_repeated(0), wanted_of_repeated(1)});
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : net->named_parameters()) {
    const auto has_tensor = [&](const auto& known) { return known.second.is_same(item.value()); };
    if (std::ranges::none_of(parameters, has_tensor)) parameters[item.key()] = item.value();
  }
  const auto optimizer = optim::make_optimizer({.name = "sgd", .lr = 0.1, .momentum = 0.9},
                                               {parameters.begin(), parameters.end()});
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    test::mean_square(net->forward(x), y).backward();
    optimizer->step();
  }
  return parameters;
}

void expect_pieces(const std::map<std::string, at::Tensor>& whole, const optim::NamedTensors& found,
                   const Pieces& pieces) {
  for (const auto& [name, tensor] : found) {
    ASSERT_TRUE(whole.contains(name)) << name;
    const auto piece = pieces.find(name);
    const at::Tensor expected = whole.at(name).detach().reshape({-1}).narrow(
        0, piece == pieces.end() ? 0 : piece->second.begin, tensor.numel());
    EXPECT_TRUE(tensor.detach().reshape({-1}).allclose(expected, 1e-5, 1e-6)) << name;
  }
}

TEST(RepeatedModule, LearnsInShardsAsOnOneRank) {
  for (const bool in_one_layer : {false, true}) {
    const auto expected = trained_by_one_rank(in_one_layer);
    for (const char* backend : {"shm", "gloo"}) {
      comm::run_ranks_as_threads(
          2,
          [&](Context& context) {
            FullyShardedDataParallel sharded(context, model::layers_of(with_repeated_module(in_one_layer)));
            const auto optimizer =
                optim::make_optimizer({.name = "sgd", .lr = 0.1, .momentum = 0.9}, sharded.parameters());
            for (int step = 0; step < 3; ++step) {
              sharded.zero_grad();
              test::mean_square(sharded.forward(rows_of_repeated(context.rank())),
                                wanted_of_repeated(context.rank()))
                  .backward();
              optimizer->step();
            }
            expect_pieces(expected, sharded.parameters(), sharded.pieces());
          },
          {.backend = backend, .timeout_s = 20});
    }
  }
}

TEST(RepeatedModule, LearnsInPipelineAsOnOneRank) {
  for (const bool in_one_layer : {false, true}) {
    const auto expected = trained_by_one_rank(in_one_layer);
    for (const int ranks : {1, 2}) {
      comm::run_ranks_as_threads(ranks, [&](Context& context) {
        Pipeline pipe(context, model::layers_of(with_repeated_module(in_one_layer)), {.num_microbatches = 2});
        const auto optimizer =
            optim::make_optimizer({.name = "sgd", .lr = 0.1, .momentum = 0.9}, pipe.parameters());
        const at::Tensor x = at::cat({rows_of_repeated(0), rows_of_repeated(1)}),
                         y = at::cat({wanted_of_repeated(0), wanted_of_repeated(1)});
        for (int step = 0; step < 3; ++step) {
          pipe.zero_grad();
          pipe.step(x, y, [](const at::Tensor& output, const at::Tensor& target) {
            return test::mean_square(output, target);
          });
          optimizer->step();
        }
        expect_pieces(expected, pipe.parameters(), pipe.pieces());
      });
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
