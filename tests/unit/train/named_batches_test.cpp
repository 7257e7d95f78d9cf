// Batches, models and objectives of named tensors: several inputs, several targets, or none. Any split of a
// batch gives the numbers of one rank, as for one tensor of each.

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/train/trainer.h"
#include "trireme/train/verify.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kUsers = 7, kItems = 5, kWidth = 6;

/// How much a user likes an item, and how sure that is.
struct Likes : data::Dataset {
  explicit Likes(std::int64_t size) : samples(size) {}
  std::int64_t size() const override { return samples; }
  data::Example get(std::int64_t index) const override {
    const std::int64_t user = index * 3 % kUsers, item = index * index % kItems;
    return {{{"user", at::full({}, user)}, {"item", at::full({}, item)}},
            {{"likes", at::full({}, static_cast<float>((user + item) % 3))},
             {"sure", at::full({}, static_cast<float>(1 + index % 4))}}};
  }
  std::int64_t samples;
};

/// 50 samples: the last batch of 24 is one of 2.
data::DataSource likes() {
  return {.name = "likes", .train = std::make_shared<Likes>(50), .test = std::make_shared<Likes>(30)};
}

/// Two towers; a pipeline hands what is not used yet from stage to stage, by name.
struct Towers : model::Model {
  Towers() { initialise(1); }
  Fields forward_all(const Fields& inputs) override {
    Fields values = inputs;
    for (const model::Layer& layer : layers()) values = layer.forward(values);
    return values;
  }
  std::vector<model::Layer> layers() override {
    return {model::make_layer(*this, "of_user", {users.ptr(), of_user.ptr()},
                              [this](const Fields& in) {
                                return Fields{{"item", in["item"]},
                                              {"user", of_user->forward(users->forward(in["user"])).tanh()}};
                              }),
            model::make_layer(*this, "of_item", {items.ptr(), of_item.ptr()}, [this](const Fields& in) {
              const at::Tensor item = of_item->forward(items->forward(in["item"])).tanh();
              return Fields{{"likes", (in["user"] * item).sum(1)}, {"size", in["user"].square().sum(1)}};
            })};
  }
  void initialise(std::uint64_t) override {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      if (!parameter.is_meta() && parameter.numel() > 0)
        parameter.copy_(at::arange(parameter.numel()).mul(0.7).sin().mul(0.5).reshape(parameter.sizes()));
    }
  }
  torch::nn::Embedding users = register_module("users", torch::nn::Embedding(kUsers, kWidth)),
                       items = register_module("items", torch::nn::Embedding(kItems, kWidth));
  torch::nn::Linear of_user = register_module("of_user", torch::nn::Linear(kWidth, 4)),
                    of_item = register_module("of_item", torch::nn::Linear(kWidth, 4));
};

/// Squares weighed by how sure they are; the mean is one over the weights.
struct Sure : objective::Objective {
  at::Tensor loss_all(const Fields& outputs, const Fields& targets) const override {
    const at::Tensor squares = (outputs["likes"] - targets["likes"]).square() + 0.01 * outputs["size"];
    return (squares * targets["sure"]).sum();
  }
  double count_all(const data::Example& batch) const override {
    return batch.target["sure"].sum().item<double>();
  }
  bool counts_by_value() const override { return true; }
  const std::vector<objective::Metric>& metrics() const override { return found; }

  std::vector<objective::Metric> found = {
      {.name = "right", .measure = [](const Fields& outputs, const Fields& targets) {
         const at::Tensor right = outputs["likes"].sub(targets["likes"]).abs().lt(0.5);
         return objective::Sum{.value = right.sum().item<double>(),
                               .count = static_cast<double>(right.numel())};
       }}};
};

struct Mode {
  int ranks;
  std::int64_t accumulation = 1, pipeline = 1;
  bool recompute = false;
};

RunConfig config_for(const Mode& mode) {
  RunConfig config;
  config.train = {.epochs = 2, .global_batch = 24, .accumulation = mode.accumulation};
  config.optimizer = {.name = "sgd", .lr = 0.1};
  config.checkpoint.best = "none";
  config.parallel.pipeline = mode.pipeline;
  config.parallel.microbatches = mode.pipeline == 1 ? 0 : 2;
  config.parallel.recompute = mode.recompute;
  return config;
}

struct Outcome {
  std::vector<double> losses;
  Evaluation evaluation;
};

Outcome train_on(const Mode& mode, const data::DataSource& data) {
  Outcome outcome;
  comm::run_ranks_as_threads(mode.ranks, [&](comm::Context& context) {
    Trainer trainer(config_for(mode), context, data, std::make_shared<Towers>(), std::make_shared<Sure>());
    std::vector<double> losses;
    while (!trainer.finished()) {
      trainer.step();
      losses.push_back(trainer.last_report()->loss);
    }
    const Evaluation evaluation = trainer.evaluate();
    if (context.is_main()) outcome = {losses, evaluation};
  });
  return outcome;
}

const std::vector<Mode> kModes = {{2}, {3, 2}, {1, 4}, {2, 1, 2}, {4, 2, 2}, {2, 1, 2, true}};

TEST(NamedBatches, AreLearntFrom) {
  const Outcome outcome = train_on({1}, likes());
  ASSERT_EQ(outcome.losses.size(), 6U);
  EXPECT_LT(outcome.losses[3], outcome.losses[0]);
  EXPECT_EQ(outcome.evaluation.metric("right").count, 30);
}

TEST(NamedBatches, GiveTheNumbersOfOneRankForEverySplit) {
  const Outcome expected = train_on({1}, likes());
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(text(mode.ranks, " ranks, ", mode.accumulation, " rounds, ", mode.pipeline, " stages"));
    const Outcome found = train_on(mode, likes());
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < expected.losses.size(); ++i)
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5) << "step " << i + 1;
    EXPECT_NEAR(found.evaluation.loss, expected.evaluation.loss, 1e-5);
    EXPECT_EQ(found.evaluation.metric("right"), expected.evaluation.metric("right"));
  }
}

TEST(NamedBatches, AreVerified) {
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(text(mode.ranks, " ranks, ", mode.accumulation, " rounds, ", mode.pipeline, " stages"));
    comm::run_ranks_as_threads(mode.ranks, [&](comm::Context& context) {
      const Comparison verdict = verify(
          config_for(mode), context, likes(), 4,
          {.make_model = [] { return std::make_shared<Towers>(); }, .objective = std::make_shared<Sure>()});
      if (!context.is_main()) return;
      EXPECT_TRUE(verdict.equal()) << (verdict.first() ? verdict.first()->describe() : "nothing compared");
      EXPECT_EQ(verdict.num_steps(), 4);
    });
  }
}

}  // namespace
}  // namespace trireme::train
