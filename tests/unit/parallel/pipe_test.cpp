// A chain in a pipe gives the results of the module, on the devices of one rank and over ranks.
#include "trireme/parallel/pipeline/pipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

torch::nn::Sequential piped_chain() {
  torch::nn::Sequential layers(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 6),
                               torch::nn::Tanh(), torch::nn::Linear(6, 3));
  test::fill_parameters(*layers);
  return layers;
}

const std::vector<std::string> kPipedNames = {"0.weight", "0.bias",   "2.weight",
                                              "2.bias",   "4.weight", "4.bias"};

using PipedValues = std::map<std::string, at::Tensor>;

/// The module after `steps` steps of plain SGD.
PipedValues trained_serially(int steps) {
  auto layers = piped_chain();
  torch::optim::SGD optimizer(layers->parameters(), 0.1);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    test::mean_square(layers->forward(test::numbers({8, 4}, step)), test::numbers({8, 3}, step + 50))
        .backward();
    optimizer.step();
  }
  PipedValues values;
  for (const auto& item : layers->named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

PipedValues trained_in_pipe(int ranks, const PipeOptions& options, int steps) {
  PipedValues values;
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    Pipe pipe(context, piped_chain(), options);
    torch::optim::SGD optimizer(pipe.parameters(), 0.1);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      pipe.step(test::numbers({8, 4}, step), test::numbers({8, 3}, step + 50), test::mean_square);
      optimizer.step();
    }
    const std::lock_guard lock(mutex);
    for (const auto& [name, value] : pipe.named_parameters())
      EXPECT_TRUE(values.emplace(name, value.detach().clone()).second) << name << " is on two ranks";
  });
  return values;
}

void expect_piped(const PipedValues& found, const PipedValues& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected)  // micro-batches are added in another order
    EXPECT_LT((found.at(name) - value).abs().max().item<double>(), 1e-6) << name;
}

TEST(Pipe, LearnsLikeModuleOnAnyRanks) {
  const PipedValues expected = trained_serially(5);
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    expect_piped(trained_in_pipe(ranks, {.chunks = 4}, 5), expected);
  }
  expect_piped(trained_in_pipe(2, {.chunks = 4, .schedule = "gpipe", .recompute = true}, 5), expected);
  expect_piped(trained_in_pipe(1, {.chunks = 4, .devices = {c10::kCPU, c10::kCPU}}, 5), expected);
}

TEST(Pipe, OneRankHasDifferentiableOutput) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    for (const std::vector<c10::Device>& devices :
         {std::vector<c10::Device>{}, std::vector<c10::Device>{c10::kCPU, c10::kCPU}}) {
      for (const bool recompute : {false, true}) {
        Pipe pipe(context, piped_chain(), {.chunks = 3, .recompute = recompute, .devices = devices});
        auto module = piped_chain();
        const at::Tensor input = test::numbers({7, 4}, 2), target = test::numbers({7, 3}, 3);
        const at::Tensor output = pipe(input);
        EXPECT_LT((output - module->forward(input)).abs().max().item<double>(), 1e-6);
        test::mean_square(output, target).backward();
        test::mean_square(module->forward(input), target).backward();
        const auto expected = module->named_parameters();
        for (const auto& [name, parameter] : pipe.named_parameters())
          EXPECT_LT((parameter.grad() - expected[name].grad()).abs().max().item<double>(), 1e-6) << name;
        EXPECT_EQ(pipe.forward(test::numbers({2, 4}, 1)).size(0), 2) << "fewer samples than chunks";
        pipe.zero_grad();
        for (const at::Tensor& parameter : pipe.parameters()) EXPECT_FALSE(parameter.grad().defined());
      }
    }
  });
}

TEST(Pipe, ForwardGivesEveryRankDetachedOutput) {
  const at::Tensor input = test::numbers({8, 4}, 2);
  const at::Tensor expected = piped_chain()->forward(input).detach();
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    Pipe pipe(context, piped_chain(), {.chunks = 4});
    const at::Tensor output = pipe.forward(input);
    EXPECT_FALSE(output.requires_grad());
    ASSERT_EQ(output.sizes(), expected.sizes());
    EXPECT_LT((output - expected).abs().max().item<double>(), 1e-6) << "rank " << context.rank();
  });
}

TEST(Pipe, HasNamesOfChainOnce) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    for (const std::vector<c10::Device>& devices :
         {std::vector<c10::Device>{}, std::vector<c10::Device>{c10::kCPU, c10::kCPU}}) {
      std::vector<std::string> names;
      for (const auto& [name, value] : Pipe(context, piped_chain(), {.devices = devices}).named_parameters())
        names.push_back(name);
      EXPECT_EQ(names, kPipedNames);
    }
  });
  std::map<std::string, int> ranks;
  std::mutex mutex;
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    const Pipe pipe(context, piped_chain());
    const std::lock_guard lock(mutex);
    for (const auto& [name, value] : pipe.named_parameters()) ++ranks[name];
  });
  EXPECT_EQ(ranks.size(), kPipedNames.size());
  for (const std::string& name : kPipedNames) EXPECT_EQ(ranks[name], 1) << name;
}

TEST(Pipe, RejectsOptionsWithAdvice) {
  const auto made = [](int ranks, const PipeOptions& options, const torch::nn::Sequential& layers) {
    comm::run_ranks_as_threads(ranks,
                               [&](comm::Context& context) { const Pipe pipe(context, layers, options); });
  };
  EXPECT_THAT([&] { made(1, {.chunks = 0}, piped_chain()); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("0 chunks"), HasSubstr("at least 1"))));
  EXPECT_THAT(
      [&] {
        made(2, {.devices = {c10::kCPU, c10::kCPU}}, piped_chain());
      },
      ThrowsMessage<InvalidArgument>(
          AllOf(HasSubstr("2 ranks names 2 devices"), HasSubstr("leave devices"))));
  EXPECT_THAT([&] { made(1, {.devices = std::vector<c10::Device>(6, c10::kCPU)}, piped_chain()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("5 layers cannot be cut into 6")));
  EXPECT_THAT([&] { made(2, {.schedule = "pipedream"}, piped_chain()); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("expected a synchronous schedule"), HasSubstr("AsynchronousTraining"))));
  const torch::nn::Linear tied(4, 4);
  const torch::nn::Sequential twice(tied, torch::nn::Tanh(), tied);
  EXPECT_THAT(
      [&] {
        made(1, {.devices = {c10::kCPU, c10::Device(c10::kMeta)}}, twice);
      },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("'0.weight'"), HasSubstr("cpu and meta"))));
}

}  // namespace
}  // namespace trireme::parallel
