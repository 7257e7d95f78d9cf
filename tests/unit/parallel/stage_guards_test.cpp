// A forward that must not affect training keeps modes, buffers and random numbers unchanged.
#include <ATen/ops/dropout.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/utils.h>

#include <functional>
#include <stdexcept>
#include <utility>

#include "tests/unit/parallel/stage_layers.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/internal/stage.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using test::numbers;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;

/// Children in any modes that their owner sets.
struct Parent : nn::Module {
  Parent()
      : norm(register_module("norm", nn::BatchNorm1d(4))), drop(register_module("drop", nn::Dropout(0.5))) {}
  nn::BatchNorm1d norm;
  nn::Dropout drop;
};

std::vector<bool> modes_of(const nn::Module& module) {
  std::vector<bool> modes;
  for (const auto& each : module.modules()) modes.push_back(each->is_training());
  return modes;
}

TEST(StageGuards, EvaluationRestoresModeOfEveryModule) {
  for (const bool root : {false, true}) {
    for (const bool norm : {false, true}) {
      for (const bool drop : {false, true}) {
        const auto parent = std::make_shared<Parent>();
        parent->train(root);
        parent->norm->train(norm);
        parent->drop->train(drop);
        const std::vector<bool> before = modes_of(*parent);
        const Stage stage({model::make_layer(*parent, "parent", {parent},
                                             [&](const at::Tensor& x) {
                                               EXPECT_EQ(modes_of(*parent), std::vector<bool>(3, false));
                                               return x;
                                             })},
                          StageOptions{});
        stage.evaluate({numbers({3, 4}, 1)});
        EXPECT_EQ(modes_of(*parent), before);
        stage.outputs_without_gradient({numbers({3, 4}, 1)}, {});
        EXPECT_EQ(modes_of(*parent), before);
      }
    }
  }
}

TEST(StageGuards, ModuleInTwoLayersKeepsTraining) {
  const auto parent = std::make_shared<Parent>();
  const auto same = [](const at::Tensor& x) { return x; };
  const Stage stage({model::make_layer(*parent, "first", {parent->drop.ptr()}, same),
                     model::make_layer(*parent, "second", {parent, parent->norm.ptr()}, same),
                     model::make_layer(*parent, "third", {parent->norm.ptr(), parent}, same)},
                    StageOptions{});
  stage.evaluate({numbers({3, 4}, 1)});
  EXPECT_EQ(modes_of(*parent), std::vector<bool>(3, true));
}

TEST(StageGuards, ThrowingForwardRestoresMode) {
  const auto parent = std::make_shared<Parent>();
  parent->norm->eval();
  const std::vector<bool> before = modes_of(*parent);
  const Stage stage(
      {model::make_layer(*parent, "parent", {parent},
                         [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a layer's own"); })},
      StageOptions{});
  EXPECT_THROW(stage.evaluate({numbers({3, 4}, 1)}), std::runtime_error);
  EXPECT_EQ(modes_of(*parent), before);
}

TEST(StageGuards, ExceptionOfLayerNamesIt) {
  const auto evaluating = [](std::function<at::Tensor(const at::Tensor&)> forward) {
    const auto module = std::make_shared<Parent>();
    const Stage stage({model::make_layer(*module, "wide", {module}, std::move(forward))}, StageOptions{});
    stage.evaluate({numbers({2, 3}, 1)});
  };
  EXPECT_THAT(
      [&] { evaluating([](const at::Tensor& x) { return x.mm(x); }); },
      ThrowsMessage<InvalidArgument>(
          AllOf(StartsWith("layer 'wide': "), HasSubstr("mat1 and mat2 shapes"), Not(HasSubstr("frame #")))));
  EXPECT_THAT(
      [&] { evaluating([](const at::Tensor&) -> at::Tensor { throw std::logic_error("not today"); }); },
      ThrowsMessage<InvalidArgument>("layer 'wide': not today"));
  EXPECT_THAT([&] { evaluating([](const at::Tensor&) -> at::Tensor { throw CommError("rank 1 died"); }); },
              ThrowsMessage<CommError>("rank 1 died"));
}

/// Counts its forwards in a buffer and draws a mask in evaluation mode, too, as some user modules do.
struct Counting : nn::Module {
  Counting() : forwards(register_buffer("forwards", at::zeros({1}))) {}
  at::Tensor forward(const at::Tensor& x) {
    forwards.add_(1);
    return at::dropout(x, 0.5, /*train=*/true);
  }
  at::Tensor forwards;
};

TEST(StageGuards, ShapeQueryKeepsBuffersAndRandomNumbers) {
  const auto counting = std::make_shared<Counting>();
  const std::vector<model::Layer> layers = {
      model::make_layer(*counting, "counting", {counting},
                        [&](const at::Tensor& x) { return counting->forward(x); }),
      {.name = "end", .forward = [](const at::Tensor& x) { return x; }}};
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Pipeline pipe(context, layers, {.program = schedule::parse_csv("0F0,1F0,1B0,0B0\n"), .cuts = {1}});
    const at::Tensor input = numbers({8, 4}, 1);
    torch::manual_seed(5);
    const at::Tensor expected = at::dropout(input, 0.5, /*train=*/true);
    torch::manual_seed(5);
    EXPECT_TRUE(pipe.evaluate(input)->equal(expected)) << "random numbers were drawn before";
    EXPECT_EQ(counting->forwards.item<float>(), 1) << "one evaluation, whatever asked for shapes";
  });
}

}  // namespace
}  // namespace trireme::parallel
