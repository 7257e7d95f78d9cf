#include "trireme/parallel/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/model/model.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::parallel {
namespace {

using test::mean_square;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kWidth = 12;

/// 8 Linear layers with a Tanh after each: 16 layers, the same weights every time.
torch::nn::Sequential chain() {
  torch::nn::Sequential layers;
  for (int i = 0; i < 8; ++i) {
    torch::nn::Linear linear(kWidth, kWidth);
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(torch::sin(torch::arange(kWidth * kWidth) * (i + 1)).reshape({kWidth, kWidth}) / 2);
    linear->bias.copy_(torch::cos(torch::arange(kWidth) + i) / 10);
    layers->push_back(linear);
    layers->push_back(torch::nn::Tanh());
  }
  return layers;
}

at::Tensor inputs(std::int64_t size) {
  return torch::sin(torch::arange(size * kWidth, at::kFloat) * 0.7).reshape({size, kWidth});
}
at::Tensor targets(std::int64_t size) {
  return torch::cos(torch::arange(size * kWidth, at::kFloat) * 0.3).reshape({size, kWidth});
}

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

/// Consecutive micro-batches with accumulated gradients.
Outcome serial(const torch::nn::Sequential& layers, std::int64_t size, int num_microbatches) {
  Outcome outcome;
  const auto in = inputs(size).tensor_split(num_microbatches),
             out = targets(size).tensor_split(num_microbatches);
  for (std::size_t m = 0; m < in.size(); ++m) {
    const double weight = static_cast<double>(in[m].size(0)) / static_cast<double>(size);
    const at::Tensor loss = mean_square(torch::nn::Sequential(layers)->forward(in[m]), out[m]);
    loss.backward(torch::full({}, weight));
    outcome.loss += loss.item<double>() * weight;
  }
  for (const auto& item : layers->named_parameters())
    outcome.gradients[item.key()] = item.value().grad().clone();
  return outcome;
}

/// Gradients of all ranks and the loss of one step. It is the second step, so that remains of the first would
/// show.
Outcome in_pipeline(int ranks, std::int64_t size, const PipelineOptions& options) {
  Outcome outcome;
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    const torch::nn::Sequential layers = chain();
    Pipeline pipe(context, model::layers_of(layers), options);
    pipe.step(inputs(size), targets(size), mean_square);
    pipe.zero_grad();
    const double loss = pipe.step(inputs(size), targets(size), mean_square);
    const std::lock_guard lock(mutex);
    outcome.loss = loss;
    for (const auto& [name, parameter] : pipe.parameters()) {
      const auto [at, fresh] = outcome.gradients.emplace(name, parameter.grad().clone());
      EXPECT_TRUE(at->second.equal(parameter.grad())) << name << " differs between its holders";
    }
  });
  return outcome;
}

void expect_equal(const Outcome& found, const Outcome& expected, double bound) {
  EXPECT_NEAR(found.loss, expected.loss, bound);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    const double difference = (found.gradients.at(name) - gradient).abs().max().item<double>();
    EXPECT_LE(difference, bound) << name;
  }
}

std::vector<std::string> schedules_that_run() {
  std::vector<std::string> names;
  for (const schedule::ScheduleRow& row : schedule::schedules()) {
    if (!row.asynchronous) names.emplace_back(row.name);
  }
  return names;
}

class EverySchedule : public testing::TestWithParam<std::string> {};

TEST_P(EverySchedule, GivesTheGradientsOfOneRank) {
  const Outcome expected = serial(chain(), 24, 8);
  for (const int ranks : {2, 4}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(text(ranks, " ranks", recompute ? ", recompute" : ""));
      // Eight summands in another order: a few units in the last place of gradients of about 0.1.
      expect_equal(
          in_pipeline(ranks, 24, {.schedule = GetParam(), .num_microbatches = 8, .recompute = recompute}),
          expected, 1e-7);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EverySchedule, testing::ValuesIn(schedules_that_run()),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& letter : name) letter = letter == '-' ? '_' : letter;
                           return "S_" + name;
                         });

TEST(Pipeline, OrderedSchedulesGiveBitsOfOneRank) {
  const Outcome expected = serial(chain(), 24, 8);
  for (const char* name : {"naive", "1f1b", "gpipe", "interleaved-1f1b"}) {
    SCOPED_TRACE(name);
    expect_equal(in_pipeline(2, 24, {.schedule = name, .num_microbatches = 8}), expected, 0);
  }
}

TEST(Pipeline, UnequalMicrobatchesCountByTheirSamples) {
  const Outcome expected = serial(chain(), 10, 4);
  expect_equal(in_pipeline(4, 10, {.schedule = "1f1b", .num_microbatches = 4}), expected, 0);
}

TEST(Pipeline, AddsToGradientsThatAreThere) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const torch::nn::Sequential layers = chain();
    Pipeline pipe(context, model::layers_of(layers), {.num_microbatches = 2});
    pipe.step(inputs(8), targets(8), mean_square);
    const at::Tensor parameter = pipe.parameters()[0].second, once = parameter.grad().clone();
    pipe.step(inputs(8), targets(8), mean_square);
    EXPECT_TRUE(parameter.grad().allclose(2 * once));
  });
}

TEST(Pipeline, EvaluatesLikeTheWholeModel) {
  const at::Tensor expected = chain()->forward(inputs(5));
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    const torch::nn::Sequential layers = chain();
    Pipeline pipe(context, model::layers_of(layers), {.schedule = "interleaved-1f1b", .num_microbatches = 3});
    const at::Tensor output = pipe.evaluate(inputs(5));
    EXPECT_EQ(output.defined(), pipe.has_last_stage());
    if (output.defined()) {
      EXPECT_TRUE(output.equal(expected));
    }
  });
}

TEST(Pipeline, ReturnsOutputsAndLossesOfMicrobatches) {
  constexpr std::int64_t kSize = 10;  // micro-batches of 3, 3, 2 and 2 samples
  const at::Tensor expected = torch::nn::Sequential(chain())->forward(inputs(kSize)).detach();
  const auto targets_of = targets(kSize).tensor_split(4), outputs_of = expected.tensor_split(4);
  for (const bool recompute : {false, true}) {
    for (const std::string schedule : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"}) {
      if (recompute && schedule == "zb-h1") continue;
      comm::run_ranks_as_threads(2, [&](comm::Context& context) {
        Pipeline pipe(context, model::layers_of(chain()),
                      {.schedule = schedule, .num_microbatches = 4, .recompute = recompute});
        StepOutputs of;
        for (int step = 0; step < 2; ++step) {
          pipe.zero_grad();
          pipe.step(inputs(kSize), targets(kSize), mean_square, &of);
          if (!pipe.has_last_stage()) {
            EXPECT_TRUE(of.outputs.empty() && of.losses.empty()) << schedule;
            continue;
          }
          EXPECT_TRUE(of.outputs.at(0).allclose(expected, 1e-6, 1e-6)) << schedule;
          EXPECT_FALSE(of.outputs.at(0).requires_grad()) << schedule;
          ASSERT_EQ(of.losses.size(), 4U) << schedule;
          for (std::size_t m = 0; m < 4; ++m)
            EXPECT_NEAR(of.losses[m].item<double>(), mean_square(outputs_of[m], targets_of[m]).item<double>(),
                        1e-5)
                << schedule << ", micro-batch " << m;
        }
      });
    }
  }
}

TEST(Pipeline, HoldsNoMoreMicrobatchesThanPromised) {
  const auto peak_of = [](const char* name) {
    int peak = 0;
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      const torch::nn::Sequential layers = chain();
      Pipeline pipe(context, model::layers_of(layers), {.schedule = name, .num_microbatches = 8});
      pipe.step(inputs(8), targets(8), mean_square);
      if (context.rank() == 0) peak = pipe.peak_live_microbatches();
    });
    return peak;
  };
  EXPECT_EQ(peak_of("naive"), 1);
  EXPECT_EQ(peak_of("1f1b"), 2);
  EXPECT_EQ(peak_of("gpipe"), 8);
}

TEST(Pipeline, CutsEvenlyOrAsGiven) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const torch::nn::Sequential layers = chain();
    const auto by_itself = [&] { return Pipeline(context, model::layers_of(layers)).stages(); };
    // Layers without parameters may be on either side of the cut.
    EXPECT_THAT(by_itself()[1].first, testing::AnyOf(7, 8));
    const Pipeline told(context, model::layers_of(layers), {.num_microbatches = 2, .cuts = {3}});
    EXPECT_EQ(told.stages()[1].first, 3);
    EXPECT_EQ(told.stages()[0].last, 3);
  });
}

TEST(Pipeline, RunsAProgramOfTheUsersOwn) {
  const Outcome expected = serial(chain(), 6, 2);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const torch::nn::Sequential layers = chain();
    const auto order = schedule::parse_csv("0F0,0F1,,0B1,0B0\n,1F0,1B0,1F1,1B1\n");
    EXPECT_THROW(
        Pipeline(context, model::layers_of(layers), {.program = schedule::parse_csv("0F0,0B0\n1B0,1F0\n")}),
        InvalidArgument)
        << "backward before forward";
    Pipeline pipe(context, model::layers_of(layers), {.program = order});
    EXPECT_NEAR(pipe.step(inputs(6), targets(6), mean_square), expected.loss, 1e-7);
    for (const auto& [name, parameter] : pipe.parameters())
      EXPECT_TRUE(parameter.grad().allclose(expected.gradients.at(name), 1e-5, 1e-7)) << name;
  });
}

TEST(Pipeline, TiedParametersGetSumOnEveryRank) {
  const auto make = [] {
    return model::make_model({.name = "gpt", .layers = 3, .heads = 2, .width = 16}, {8}, 20, /*seed=*/3);
  };
  const at::Tensor tokens = torch::arange(4 * 8).reshape({4, 8}) * 7 % 20, next = (tokens + 1) % 20;
  const auto loss = [](const at::Tensor& logits, const at::Tensor& target) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
  };
  const auto whole = make();
  loss(whole->forward(tokens), next).backward();
  const at::Tensor expected = whole->named_parameters()["transformer.wte.weight"].grad();
  std::mutex mutex;
  std::vector<at::Tensor> found;
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    const auto model = make();
    if (context.rank() == 2) {  // the replicas of the tied weight start with the value of the first one
      const torch::NoGradGuard no_grad;
      model->named_parameters()["transformer.wte.weight"].zero_();
    }
    Pipeline pipe(context, model->layers(), {.num_microbatches = 2});
    pipe.step(tokens, next, loss);
    pipe.zero_grad();
    pipe.step(tokens, next, loss);
    const std::lock_guard lock(mutex);
    for (const auto& [name, parameter] : pipe.parameters()) {
      if (name == "transformer.wte.weight") found.push_back(parameter.grad().clone());
    }
  });
  ASSERT_EQ(found.size(), 2u) << "the first and the last rank";
  EXPECT_TRUE(found[0].equal(found[1]));
  EXPECT_TRUE(found[0].allclose(expected, 1e-4, 1e-7));
}

TEST(Pipeline, RecomputeKeepsDropoutAndRunningStatistics) {
  const auto train = [](bool recompute) {
    std::pair<at::Tensor, at::Tensor> result;
    comm::run_ranks_as_threads(1, [&](comm::Context& context) {
      torch::nn::Sequential layers = chain();
      layers->push_back(torch::nn::BatchNorm1d(kWidth));
      layers->push_back(torch::nn::Dropout(0.5));
      torch::manual_seed(5);
      Pipeline pipe(context, model::layers_of(layers),
                    {.schedule = "gpipe", .num_microbatches = 4, .recompute = recompute});
      pipe.step(inputs(16), targets(16), mean_square);
      result = {pipe.parameters()[0].second.grad(), layers->named_buffers()["16.running_mean"].clone()};
    });
    return result;
  };
  const auto kept = train(false), again = train(true);
  EXPECT_TRUE(again.first.equal(kept.first));
  EXPECT_TRUE(again.second.equal(kept.second));
}

template <class Body>
std::string error_on_rank_0(int ranks, const Body& body) {
  std::string message = "no error";
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    try {
      body(context);
    } catch (const InvalidArgument& error) {
      if (context.is_main()) message = error.what();
    }
  });
  return message;
}

TEST(Pipeline, RejectsInvalidOptionsWithReason) {
  const auto make = [](comm::Context& context, const PipelineOptions& options) {
    Pipeline(context, model::layers_of(chain()), options);
  };
  const auto error_of = [&](int ranks, const PipelineOptions& options) {
    return error_on_rank_0(ranks, [&](comm::Context& context) { make(context, options); });
  };
  EXPECT_THAT(error_of(2, {.schedule = "1f2b"}), HasSubstr("1f1b"));
  EXPECT_THAT(error_of(2, {.schedule = "interleaved-1f1b", .num_microbatches = 18, .num_chunks = 9}),
              AllOf(HasSubstr("18"), HasSubstr("16 layers")));
  EXPECT_THAT(error_of(2, {.cuts = {0}}), HasSubstr("begin at layer 0"));
  EXPECT_THAT(error_of(2, {.cuts = {4, 8}}), HasSubstr("1 cuts, found 2"));
  EXPECT_THAT(
      error_on_rank_0(
          2, [&](comm::Context& context) { make(context, {.num_microbatches = 2 + context.rank()}); }),
      AllOf(HasSubstr("different pipelines"), HasSubstr("2 micro-batches"), HasSubstr("3 micro-batches")));
}

TEST(Pipeline, StepAfterFailedStepBeginsAnew) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    const torch::nn::Sequential layers = chain();
    Pipeline pipe(context, model::layers_of(layers), {.schedule = "gpipe", .num_microbatches = 4});
    int losses = 0;
    const auto third_throws = [&](const at::Tensor& output, const at::Tensor& target) {
      return ++losses == 3 ? throw DataError("no target") : mean_square(output, target);
    };
    EXPECT_THROW(pipe.step(inputs(12), targets(12), third_throws), DataError);
    EXPECT_TRUE(pipe.drained());
    pipe.zero_grad();
    Outcome found{.loss = pipe.step(inputs(12), targets(12), mean_square), .gradients = {}};
    for (const auto& [name, parameter] : pipe.parameters()) found.gradients[name] = parameter.grad();
    expect_equal(found, serial(chain(), 12, 4), 0);
  });
}

TEST(Pipeline, RejectsABatchSmallerThanItsMicrobatches) {
  EXPECT_THAT(error_on_rank_0(2,
                              [&](comm::Context& context) {
                                Pipeline pipe(context, model::layers_of(chain()), {.num_microbatches = 4});
                                pipe.step(inputs(3), targets(3), mean_square);
                              }),
              AllOf(HasSubstr("3 samples"), HasSubstr("4 micro-batches")));
}

TEST(Pipeline, NamesStageWithChangedOutputShape) {
  EXPECT_THAT(error_on_rank_0(1,
                              [&](comm::Context& context) {
                                int calls = 0;
                                std::vector<model::Layer> layers = model::layers_of(chain());
                                layers[3].forward = [&](const at::Tensor& x) {
                                  return ++calls > 4 ? x.narrow(1, 0, 6) : x;
                                };
                                layers.resize(5);
                                layers[4].forward = [](const at::Tensor& x) { return x; };
                                Pipeline pipe(
                                    context, layers,
                                    {.program = schedule::parse_csv("0F0,1F0,1B0,0B0\n"), .cuts = {4}});
                                for (int step = 0; step < 9; ++step)
                                  pipe.step(inputs(4), targets(4), mean_square);
                              }),
              AllOf(HasSubstr("stage 0 (layers 0 to 3)"), HasSubstr("(4, 6)"), HasSubstr("(4, 12)")));
}

TEST(Layers, OfEveryModelAreTheModel) {
  for (const std::string& name : model::model_names()) {
    SCOPED_TRACE(name);
    const bool tokens = name == "gpt";
    const std::vector<std::int64_t> shape =
        tokens ? std::vector<std::int64_t>{8} : std::vector<std::int64_t>{1, 28, 28};
    const auto model =
        model::make_model({.name = name, .hidden = {16, 8}, .width = 16}, shape, 10, /*seed=*/1);
    model->eval();
    const at::Tensor input = tokens ? torch::arange(16).reshape({2, 8}) % 10 : torch::rand({2, 1, 28, 28});
    at::Tensor values = input;
    std::map<std::string, at::Tensor> parameters;
    for (const model::Layer& layer : model->layers()) {
      values = layer.forward(values);
      for (const auto& [key, parameter] : layer.parameters) parameters.emplace(key, parameter);
    }
    EXPECT_TRUE(values.equal(model->forward(input)));
    EXPECT_EQ(parameters.size(), model->named_parameters().size());
    for (const auto& item : model->named_parameters())
      EXPECT_TRUE(parameters.at(item.key()).is_same(item.value()));
  }
}

}  // namespace
}  // namespace trireme::parallel
