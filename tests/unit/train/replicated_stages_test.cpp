// 1F1B-RR in the trainer: stages with several ranks. A step is a number of micro-batches. A stage with r
// ranks updates after every r of them, from their mean.
#include <gmock/gmock.h>

#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Weights = std::map<std::string, at::Tensor>;

/// 70 small images: with a global batch of 32 an epoch is 32, 32 and 6 samples.
data::DataSource images() {
  const auto split = [&](std::uint64_t number) {
    return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
        .num_samples = 70, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = number});
  };
  return {.name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
}

/// Five layers. The second stage begins with the third layer.
RunConfig replicated(std::vector<std::int64_t> replicas) {
  RunConfig config;
  config.model.hidden = {12, 12, 12, 12};
  config.train.epochs = 2;
  config.train.global_batch = 32;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.9;
  config.parallel.pipeline = std::accumulate(replicas.begin(), replicas.end(), std::int64_t{0});
  config.parallel.schedule = "1f1b-rr";
  config.parallel.cuts = {2};
  config.parallel.stage_replicas = std::move(replicas);
  return config;
}

struct Trained {
  Weights weights;
  std::vector<double> losses;
  Evaluation evaluation;
};

Trained train(const RunConfig& config) {
  Trained trained;
  const data::DataSource data = images();
  std::mutex mutex;
  comm::run_ranks_as_threads(static_cast<int>(config.parallel.pipeline), [&](comm::Context& context) {
    Trainer trainer(config, context, data);
    std::vector<double> losses;
    const auto take = [&](const std::optional<StepReport>& report) {
      if (report) losses.push_back(report->loss);
    };
    while (!trainer.finished()) take(trainer.step());
    while (const auto report = trainer.last_report()) take(report);
    const Evaluation evaluation = trainer.evaluate();
    const std::lock_guard lock(mutex);
    for (const auto& [name, parameter] : trainer.parameters()) {
      const auto [held, is_first] = trained.weights.emplace(name, parameter.detach().clone());
      EXPECT_TRUE(held->second.equal(parameter)) << name << " differs between the ranks of its stage";
    }
    if (context.is_main()) {
      trained.losses = losses;
      trained.evaluation = evaluation;
    }
  });
  return trained;
}

TEST(ReplicatedStages, LeaveFrozenWeightsAsTheyAre) {
  RunConfig config = replicated({2, 1});
  config.optimizer.weight_decay = 0.1;
  const data::DataSource data = images();
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    const auto model = model::make_model(config.model, data.input_shape, data.num_classes, /*seed=*/0);
    const at::Tensor frozen = model->parameters()[0].requires_grad_(false);
    const at::Tensor before = frozen.clone(), trained = model->parameters()[1].detach().clone();
    Trainer trainer(config, context, data, model);
    while (!trainer.finished()) trainer.step();
    while (trainer.last_report()) {
    }
    if (context.rank() == 2) return;  // this rank has the second stage
    EXPECT_TRUE(frozen.equal(before));
    EXPECT_FALSE(model->parameters()[1].equal(trained)) << "the others of the stage learn";
  });
}

using Gradients = std::vector<at::Tensor>;

Gradients take_gradients(const optim::NamedTensors& parameters) {
  Gradients gradients;
  for (const auto& [name, parameter] : parameters)
    gradients.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
  return gradients;
}

/// One update from the mean of a group of micro-batches.
void update(optim::Optimizer& optimizer, const optim::NamedTensors& parameters,
            std::span<const Gradients> group) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor sum = group.front()[i];
    for (const Gradients& more : group.subspan(1)) sum = sum + more[i];
    parameters[i].second.mutable_grad() = sum / static_cast<double>(group.size());
  }
  optimizer.step();
  take_gradients(parameters);
}

/// The same rule on one rank, for streams of one step with two micro-batches. A last stage with one rank
/// updates after each of them. All other stages update after both.
Trained serial(const RunConfig& config) {
  const data::DataSource data = images();
  const auto seed = static_cast<std::uint64_t>(config.run.seed);
  const auto model = model::make_model(config.model, data.input_shape, data.num_classes, seed);
  const auto objective = objective::make_objective(config.objective, {.data = data, .model = model.get()});
  const std::vector<model::Layer> layers = model->layers();
  std::vector<optim::NamedTensors> stages(2);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    optim::NamedTensors& stage = stages[static_cast<std::int64_t>(i) < config.parallel.cuts.front() ? 0 : 1];
    stage.insert(stage.end(), layers[i].parameters.begin(), layers[i].parameters.end());
  }
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
  for (const optim::NamedTensors& stage : stages)
    optimizers.push_back(optim::make_optimizer(config.optimizer, stage));
  const auto stream =
      data.train->open({.global_batch = config.train.global_batch, .num_microbatches = 2, .seed = seed});
  Trained trained;
  for (int step = 0; step < 6; ++step) {
    const data::StepBatch batch = stream->next();
    const auto count = static_cast<double>(batch.global_size);
    std::vector<std::vector<Gradients>> gradients(2);
    double sum = 0;
    for (const data::Example& samples : batch.microbatches) {
      Fields values = samples.input;
      for (const model::Layer& layer : layers) values = layer.forward(values);
      const at::Tensor loss = objective->loss_all(values, samples.target);
      sum += loss.item<double>();
      (loss * (2 / count)).backward();
      for (std::size_t stage : {0, 1}) {
        const auto replicas = static_cast<std::size_t>(config.parallel.stage_replicas[stage]);
        gradients[stage].push_back(take_gradients(stages[stage]));
        const bool waits = stage == 0 || replicas > 1;
        if (waits && gradients[stage].size() < 2) continue;
        const std::span<const Gradients> all(gradients[stage]);
        for (std::size_t begin = 0; begin < all.size(); begin += replicas)
          update(*optimizers[stage], stages[stage], all.subspan(begin, replicas));
        gradients[stage].clear();
      }
    }
    trained.losses.push_back(sum / count);
  }
  for (const optim::NamedTensors& stage : stages)
    for (const auto& [name, parameter] : stage) trained.weights[name] = parameter.detach().clone();
  return trained;
}

void expect_near(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, weight] : expected)
    EXPECT_TRUE(found.at(name).allclose(weight, /*rtol=*/1e-4, /*atol=*/1e-6))
        << name << " differs by " << (found.at(name) - weight).abs().max().item<double>();
}

TEST(ReplicatedStages, UpdateFromMeanOfMicroBatches) {
  for (const std::vector<std::int64_t>& replicas : {std::vector<std::int64_t>{2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(text(replicas[0], " and ", replicas[1], " ranks"));
    RunConfig config = replicated(replicas);
    config.eval.every_steps = 1;  // so that a stream is one step
    const Trained found = train(config), expected = serial(config);
    expect_near(found.weights, expected.weights);
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < expected.losses.size(); ++i)
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5) << "step " << i + 1;
    EXPECT_EQ(found.evaluation.samples, 70);
  }
}

TEST(ReplicatedStages, OfOneRankEachArePipeDream) {
  const RunConfig alone = replicated({1, 1});
  RunConfig pipedream = alone;
  pipedream.parallel.schedule = "pipedream";
  pipedream.parallel.stage_replicas = {};
  const Trained found = train(alone), expected = train(pipedream);
  for (const auto& [name, weight] : expected.weights)
    EXPECT_TRUE(found.weights.at(name).equal(weight)) << name;
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.evaluation, expected.evaluation);
}

TEST(ReplicatedStages, TakeDivisibleNumberOfMicroBatches) {
  const auto microbatches = [](const std::vector<std::int64_t>& replicas, std::int64_t asked) {
    RunConfig config = replicated(replicas);
    config.parallel.microbatches = asked;
    return resolve_plan(config, static_cast<int>(config.parallel.pipeline)).num_microbatches();
  };
  EXPECT_EQ(microbatches({2, 1}, 0), 2);
  EXPECT_EQ(microbatches({2, 3}, 0), 6);
  EXPECT_EQ(microbatches({2, 1}, 6), 6);
  RunConfig by_default = replicated({2, 1});
  by_default.parallel.stage_replicas = {};
  EXPECT_EQ(resolve_plan(by_default, 3).replicas_of_stages(), (std::vector<int>{2, 1}));
}

TEST(ReplicatedStages, DriftEndsRunBeforeEvaluation) {
  const data::DataSource data = images();
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    Trainer trainer(replicated({2, 1}), context, data);
    while (!trainer.finished()) trainer.step();
    trainer.evaluate();
    const at::NoGradGuard no_grad;
    if (context.rank() == 1) trainer.parameters().front().second.view({-1})[0].add_(0.125);
    EXPECT_THAT([&] { trainer.evaluate(); },
                ThrowsMessage<CommError>(
                    AllOf(HasSubstr("the replicas have drifted apart"), HasSubstr("evaluated or saved"))));
  });
}

}  // namespace
}  // namespace trireme::train
