// Values that are rejected between stages, and the error messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/unit/parallel/edge_models.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using model::Layer;
using model::Tensors;
using test::mean_square;
using testing::AllOf;
using testing::HasSubstr;

/// Four stages on one rank, because the rejections do not depend on transfers.
PipelineOptions on_one_rank(std::vector<int> cuts) {
  std::string order;
  const auto stages = cuts.size() + 1;
  for (std::size_t stage = 0; stage < stages; ++stage) order += text(stage, "F0,");
  for (std::size_t stage = stages; stage > 0; --stage) order += text(stage - 1, "B0", stage > 1 ? "," : "\n");
  return {.program = schedule::parse_csv(order), .cuts = std::move(cuts)};
}

/// Runs some steps of the UNet's layers after `change`.
std::string error_of(const std::function<void(std::vector<Layer>&)>& change, int num_steps = 1) {
  std::string message = "no error";
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const auto model = test::make_unet();
    std::vector<Layer> layers = model->layers();
    change(layers);
    try {
      Pipeline pipe(context, layers, on_one_rank({2, 4, 6}));
      for (int step = 0; step < num_steps; ++step) pipe.step(model->input(4), model->target(4), mean_square);
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
  });
  return message;
}

TEST(PipelineEdgesErrors, TheLayersThemselvesAreTaken) {
  EXPECT_EQ(error_of([](auto&) {}, 2), "no error");
}

TEST(PipelineEdgesErrors, UnmatchedSkipIsNamedWithLayer) {
  EXPECT_THAT(error_of([](auto& layers) { layers[1].gives = {}; }),
              HasSubstr("layer 'up2' takes skip 'outer', which no layer gives"));
  EXPECT_THAT(error_of([](auto& layers) { layers[5].takes = {}; }),
              HasSubstr("layer 'down2' gives skip 'inner', which no layer takes"));
  EXPECT_THAT(error_of([](auto& layers) { layers[2].gives = {"outer"}; }),
              HasSubstr("layer 'down2' gives skip 'outer', which layer 'down1' has given"));
}

TEST(PipelineEdgesErrors, SkipIsGivenBeforeTaken) {
  EXPECT_THAT(error_of([](auto& layers) { std::swap(layers[2], layers[5]); }),
              HasSubstr("layer 'up1' takes skip 'inner' before it is given: layer 'down2' after it"));
  EXPECT_THAT(error_of([](auto& layers) { layers[1].takes = {"outer"}; }),
              HasSubstr("layer 'down1' takes skip 'outer' before it is given: the same layer"));
}

TEST(PipelineEdgesErrors, SkipsRequireLayerOfSeveralTensors) {
  EXPECT_THAT(error_of([&](auto& layers) { layers[1].forward = [](const at::Tensor& x) { return x; }; }),
              AllOf(HasSubstr("layer 'down1' returns 1 tensors"), HasSubstr("at least 2")));
  EXPECT_THAT(
      error_of([&](auto& layers) { layers[5].forward = [](const at::Tensor& x) { return x; }; }),
      AllOf(HasSubstr("layer 'up1': expected one tensor, found 2 fields"), HasSubstr("'inner', Float")));
  EXPECT_THAT(error_of([](auto& layers) {
                layers[3].forward = [](const Tensors& x) { return Tensors{x[0], x[0]}; };
              }),
              HasSubstr("layer 'middle2': expected one tensor, found 2 fields"));
  EXPECT_THAT(
      error_of([](auto& layers) { layers[1].forward = [](const Tensors& x) { return Tensors{x[0]}; }; }),
      AllOf(HasSubstr("layer 'down1' returns 1 tensors"), HasSubstr("at least 2")));
  EXPECT_THAT(error_of([](auto& layers) {
                layers[1].forward = [](const Tensors& x) { return Tensors{x[0], at::Tensor()}; };
              }),
              HasSubstr("layer 'down1' returns an undefined tensor"));
}

/// From the second step on, the layer in the middle of stage 1 returns `later`.
std::string error_of_later(const std::function<Tensors(const at::Tensor&)>& later) {
  int calls = 0;
  return error_of(
      [&](auto& layers) {
        layers[3].forward = [&](const Tensors& x) { return ++calls > 4 ? later(x[0]) : x; };
      },
      9);
}

TEST(PipelineEdgesErrors, NamesStageWithChangedOutputTensors) {
  EXPECT_THAT(error_of_later([](const at::Tensor& x) {
                return Tensors{x, x};
              }),
              AllOf(HasSubstr("stage 1 (layers 2 to 3) returns 4 tensors"),
                    HasSubstr("returned 3 tensors: (4, 4) Float; (4, 12) Float; (4, 8) Float")));
  EXPECT_THAT(
      error_of_later([](const at::Tensor& x) { return Tensors{x.narrow(1, 0, 2)}; }),
      AllOf(HasSubstr("stage 1"), HasSubstr("returns 3 tensors: (4, 2)"), HasSubstr("3 tensors: (4, 4)")));
}

/// A model of two layers, in two stages.
std::string error_between(std::function<Tensors(const Tensors&)> first) {
  std::string message = "no error";
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    torch::nn::Linear linear(4, 4);
    const Tensors all = {linear->weight};
    std::vector<Layer> layers = {{.name = "first", .forward = first}, {.name = "second", .forward = nullptr}};
    layers[0].parameters = {{"weight", linear->weight}};
    layers[1].forward = [&](const Tensors& x) { return Tensors{x[0].to(at::kFloat).matmul(linear->weight)}; };
    try {
      Pipeline pipe(context, layers, on_one_rank({1}));
      pipe.step(torch::ones({2, 4}), torch::ones({2, 4}), mean_square);
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
  });
  return message;
}

TEST(PipelineEdgesErrors, EdgeNeedsTensorWithGradient) {
  const auto whole = [](const at::Tensor& x) { return x.to(at::kLong); };
  EXPECT_THAT(error_between([&](const Tensors& x) {
                return Tensors{whole(x[0]), whole(x[0])};
              }),
              AllOf(HasSubstr("2 tensors: (2, 4) Long; (2, 4) Long"), HasSubstr("only floating-point")));
  EXPECT_THAT(error_between([&](const Tensors& x) {
                return Tensors{x[0].detach(), x[0].detach()};
              }),
              AllOf(HasSubstr("stage 0"), HasSubstr("none of them needed a gradient")));
}

TEST(PipelineEdgesErrors, LateTrainableParametersRequireNewPipeline) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const auto model = std::make_shared<test::UNet>();
    const auto set_learning = [&](bool learns) {
      for (at::Tensor& parameter : model->stem->parameters()) parameter.requires_grad_(learns);
    };
    set_learning(false);
    Pipeline pipe(context, model->layers(), on_one_rank({2, 4, 6}));
    const auto step = [&] { pipe.step(model->input(4), model->target(4), mean_square); };
    step();
    set_learning(true);
    EXPECT_THAT(step, testing::ThrowsMessage<InvalidArgument>(
                          HasSubstr("output 1 of layers 'stem' to 'down1' needs a gradient")));
  });
}

}  // namespace
}  // namespace trireme::parallel
