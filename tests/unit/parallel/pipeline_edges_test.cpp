// Transfers between stages: several tensors, some without gradients, and skip connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

#include "tests/unit/parallel/edge_models.h"
#include "trireme/base/error.h"
#include "trireme/comm/mesh.h"
#include "trireme/parallel/pipeline/internal/output_shapes.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using model::Tensors;
using test::EdgeModel;
using test::MakeEdgeModel;
using test::mean_square;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSamples = 16;
constexpr int kMicrobatches = 8;

using Gradients = std::map<std::string, at::Tensor>;

/// Consecutive micro-batches with accumulated gradients, through the model's own forward.
Gradients serial(const MakeEdgeModel& make) {
  const auto model = make();
  const auto in = model->input(kSamples).tensor_split(kMicrobatches),
             out = model->target(kSamples).tensor_split(kMicrobatches);
  for (std::size_t m = 0; m < in.size(); ++m)
    mean_square(model->forward(in[m]), out[m]).backward(torch::full({}, 1.0 / kMicrobatches));
  Gradients gradients;
  for (const auto& item : model->named_parameters()) {
    if (item.value().grad().defined()) gradients[item.key()] = item.value().grad().clone();
  }
  return gradients;
}

/// Gradients of all ranks in one step, the second.
Gradients in_pipeline(const MakeEdgeModel& make, int ranks, PipelineOptions options) {
  options.num_microbatches = kMicrobatches;
  Gradients gradients;
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    const auto model = make();
    Pipeline pipe(context, model->layers(), options);
    for (int step = 0; step < 2; ++step) {
      pipe.zero_grad();
      pipe.step(model->input(kSamples), model->target(kSamples), mean_square);
    }
    const std::lock_guard lock(mutex);
    for (const auto& [name, parameter] : pipe.parameters()) {
      const auto [at, fresh] = gradients.emplace(name, parameter.grad().clone());
      EXPECT_TRUE(at->second.equal(parameter.grad())) << name << " differs between its holders";
    }
  });
  return gradients;
}

void expect_equal(const Gradients& found, const Gradients& expected, double bound) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, gradient] : expected) {
    EXPECT_GT(gradient.abs().max().item<double>(), 1e-4) << name << " is worth a comparison";
    EXPECT_LE((found.at(name) - gradient).abs().max().item<double>(), bound) << name;
  }
}

struct Row {
  const char* schedule;
  double bound;  ///< 0: bit for bit
};
/// Eight summands in another order: a few units in the last place of gradients below 1.
constexpr double kRounding = 3e-7;
constexpr Row kRows[] = {{"gpipe", 0}, {"1f1b", 0}, {"interleaved-1f1b", kRounding}, {"zb-h1", kRounding}};

/// With each number of ranks, with and without recomputation.
void expect_gradients_of_one_rank(const MakeEdgeModel& make) {
  const Gradients expected = serial(make);
  for (const Row& row : kRows) {
    for (const int ranks : {2, 3, 4}) {
      if (ranks == 3 && row.schedule == std::string("interleaved-1f1b")) continue;  // 8 is not divisible by 3
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(text(row.schedule, ", ", ranks, " ranks", recompute ? ", recompute" : ""));
        expect_equal(in_pipeline(make, ranks, {.schedule = row.schedule, .recompute = recompute}), expected,
                     row.bound);
      }
    }
  }
}

TEST(PipelineEdges, SkipsOverStagesMatchOneRank) { expect_gradients_of_one_rank(test::make_unet); }

TEST(PipelineEdges, SeveralTensorsMatchGradientsOfOneRank) {
  expect_gradients_of_one_rank(test::make_masked);
}

TEST(PipelineEdges, LocalNeighbourStagesPassTensorsOn) {
  for (const auto make : {test::make_unet, test::make_masked})
    expect_equal(in_pipeline(make, 2, {.schedule = "zb-v"}), serial(make), kRounding);
}

TEST(PipelineEdges, TiedParametersGetSumBesideTensors) {
  expect_equal(in_pipeline(test::make_tied, 2, {.schedule = "1f1b"}), serial(test::make_tied), kRounding);
}

TEST(PipelineEdges, EvaluationGivesAllOutputs) {
  for (const auto make : {test::make_unet, test::make_masked}) {
    const auto whole = make();
    const at::Tensor expected = whole->forward(whole->input(5));
    comm::run_ranks_as_threads(3, [&](comm::Context& context) {
      const auto model = make();
      std::vector<model::Layer> layers = model->layers();
      layers.back().forward = [inner = layers.back().forward](const Tensors& x) {
        return Fields{{"value", inner(x)}, {"other", torch::zeros(1)}};
      };
      Pipeline pipe(context, layers);
      const Fields outputs = pipe.evaluate(model->input(5));
      ASSERT_EQ(outputs.at(0).defined(), pipe.has_last_stage());
      if (pipe.has_last_stage()) {
        EXPECT_TRUE(outputs["value"].equal(expected));
        EXPECT_EQ(outputs["other"].numel(), 1);
      }
    });
  }
}

TEST(PipelineEdges, ReplicasReduceGradientsWithSkips) {
  const Gradients expected = serial(test::make_unet);
  Gradients found;
  std::mutex mutex;
  comm::run_ranks_as_threads(4, [&](comm::Context& context) {
    comm::Mesh mesh(context, {{"pp", 2}, {"dp", 2}});
    const auto model = test::make_unet();
    Pipeline pipe(context, {.pipeline = mesh.group("pp"), .data = mesh.group("dp")}, model->layers(),
                  {.num_microbatches = kMicrobatches / 2});
    const int half = mesh.group("dp").rank();
    const auto part = [&](const at::Tensor& batch) { return batch.chunk(2)[static_cast<std::size_t>(half)]; };
    pipe.step(part(model->input(kSamples)), part(model->target(kSamples)), mean_square);
    const std::lock_guard lock(mutex);
    for (const auto& [name, parameter] : pipe.parameters()) found[name] = parameter.grad().clone();
  });
  expect_equal(found, expected, kRounding);
}

TEST(PipelineEdges, AsynchronousPipelinesCarrySkips) {
  // The weights do not change, so that each update has the gradient of its own micro-batch.
  std::vector<Gradients> found(kMicrobatches);
  std::mutex mutex;
  const auto microbatch = [](const EdgeModel& model, int m) {
    return MicroBatch{.input = model.input(kSamples).narrow(0, 2 * m, 2),
                      .target = model.target(kSamples).narrow(0, 2 * m, 2)};
  };
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    const auto model = test::make_unet();
    std::size_t updates = 0;
    const Pipeline* made = nullptr;
    PipelineOptions options{.schedule = "pipedream", .num_microbatches = 1};
    options.update = [&] {
      const std::lock_guard lock(mutex);
      for (const auto& [name, parameter] : made->parameters())
        found[updates][name] = parameter.grad().clone();
      ++updates;
    };
    Pipeline pipe(context, model->layers(), options);
    made = &pipe;
    pipe.start({.num_updates = kMicrobatches,
                .next = [&](int m) { return microbatch(*model, m); },
                .shapes = {microbatch(*model, 0).input},
                .loss = mean_square});
    while (!pipe.drained()) pipe.advance(1);
  });
  for (int m = 0; m < kMicrobatches; ++m) {
    const auto model = test::make_unet();
    const MicroBatch batch = microbatch(*model, m);
    mean_square(model->forward(batch.input), batch.target).backward();
    Gradients expected;
    for (const auto& item : model->named_parameters()) expected[item.key()] = item.value().grad();
    expect_equal(found[static_cast<std::size_t>(m)], expected, 0);
  }
}

TEST(PipelineEdges, GradientsReturnOnlyWhereNeeded) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const auto model = test::make_masked();
    const std::vector<model::Layer> layers = model->layers();
    const std::vector<Pipeline::StageLayers> stages = {{0, 4, {0}}, {4, 8, {1}}};
    std::map<int, Stage> mine;
    const auto first = layers.begin() + 4 * context.rank();
    mine.try_emplace(context.rank(), std::vector(first, first + 4),
                     StageOptions{.wants_input_gradient = context.rank() > 0});
    WeightsOfStages weights;
    weights[context.rank()] =
        make_stage_weights({}, {.data = std::nullopt, .reduction = DataParallelOptions()});
    OutputShapes shapes(context.world(), stages, mine, weights, c10::kCPU);
    shapes.learn(model->input(2));
    const EdgeSpec edge = shapes.of(model->input(2))[0];
    EXPECT_EQ(to_text(edge.tensors),
              "4 tensors: (2, 5, 6) Float; (2, 5, 1) Bool; (2, 5) Long; (2, 1, 1) Float");
    EXPECT_THAT(edge.without_gradient, ElementsAre(1, 2, 3));
    EXPECT_THAT(edge.gradients(), ElementsAre(TensorSpec{.sizes = {2, 5, 6}, .type = at::kFloat}));
  });
}

TEST(PipelineEdges, IrrelevantTensorTakesNothingFromOthers) {
  const at::Tensor x = test::numbers({4, 4}, 2), y = test::numbers({4, 4}, 3);
  const auto make = [] {
    torch::nn::Sequential chain(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    test::fill_parameters(*chain);
    return chain;
  };
  torch::nn::Sequential whole = make();
  mean_square(whole->forward(x), y).backward();
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    std::vector<model::Layer> layers = model::layers_of(make());
    layers[0].forward = [inner = layers[0].forward](const Tensors& in) {
      const at::Tensor out = inner(in[0]);
      return Tensors{out, out * 2};
    };
    layers[1].forward = [inner = layers[1].forward](const Tensors& in) { return Tensors{inner(in[0])}; };
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      Pipeline pipe(context, layers, {.schedule = schedule, .num_microbatches = 1});
      pipe.zero_grad();
      pipe.step(x, y, mean_square);
      for (const auto& [name, parameter] : pipe.parameters())
        EXPECT_TRUE(parameter.grad().equal(whole->named_parameters()[name].grad()))
            << schedule << " " << name;
    }
  });
}

TEST(PipelineEdges, FrozenStageReceivesNoGradients) {
  const MakeEdgeModel make = [] {
    const auto model = test::make_unet();
    for (const char* name : {"stem", "down1", "down2", "middle1"}) {
      for (at::Tensor& parameter : model->named_children()[name]->parameters())
        parameter.requires_grad_(false);
    }
    return model;
  };
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const auto model = make();
    Pipeline pipe(context, model->layers(), {.num_microbatches = kMicrobatches, .cuts = {4}});
    pipe.step(model->input(kSamples), model->target(kSamples), mean_square);
    const Gradients expected = serial(make);
    for (const auto& [name, parameter] : pipe.parameters()) {
      ASSERT_EQ(parameter.grad().defined(), expected.contains(name)) << name;
      if (!expected.contains(name)) continue;
      EXPECT_TRUE(parameter.grad().equal(expected.at(name))) << name;
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
