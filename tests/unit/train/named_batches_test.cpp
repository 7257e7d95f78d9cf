// Batches, models and objectives of named tensors: several inputs, several targets, or none. Any split of a
// batch gives the numbers of one rank, as with one tensor of each.

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <mutex>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/data/collate.h"
#include "trireme/model/initialise.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kUsers = 7, kItems = 5, kWidth = 6;

/// The rating of an item by a user, and its certainty.
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

/// 50 samples. The last batch has 2 instead of 24.
data::DataSource likes() {
  return {.name = "likes", .train = std::make_shared<Likes>(50), .test = std::make_shared<Likes>(30)};
}

/// Two towers. A pipeline passes unused tensors from stage to stage by name.
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

/// Squares weighted by certainty. The mean is over the weights.
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
  config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0.9};
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

TEST(NamedBatches, MatchOneRankForEverySplit) {
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

/// Sentences of 1 to 7 words. The target of a word says whether the next word (cyclically) is larger. The
/// output of a word depends on the sentence, and not on its padding.
struct Sentences : data::Dataset {
  std::int64_t size() const override { return 50; }
  data::Example get(std::int64_t index) const override {
    const at::Tensor words = at::arange(1 + index % 7).mul(index + 3).remainder(9);
    return {{{"words", words}}, at::cat({words.slice(0, 1), words.slice(0, 0, 1)}).gt(words).to(at::kLong)};
  }
};

constexpr std::int64_t kPadding = -1;

data::DataSource sentences(std::vector<data::Padding> paddings = {{.field = "words", .mask = "mask"},
                                                                  {.field = "target", .value = kPadding}}) {
  const auto split = data::padded(std::make_shared<Sentences>(), std::move(paddings));
  return {.name = "sentences", .train = split, .test = split, .num_classes = 2, .targets_per_sample = 0};
}

struct Tagger : model::Model {
  Tagger() { model::initialise(*this, 1); }
  Fields forward_all(const Fields& inputs) override { return tag(read(inputs)); }
  std::vector<model::Layer> layers() override {
    return {model::make_layer(*this, "read", {words.ptr()}, [this](const Fields& in) { return read(in); }),
            model::make_layer(*this, "tag", {tags.ptr()}, [this](const Fields& in) { return tag(in); })};
  }
  Fields read(const Fields& in) {
    return {{"values", words->forward(in["words"])}, {"mask", in["mask"].unsqueeze(2)}};
  }
  at::Tensor tag(const Fields& in) {
    return tags->forward(in["values"] + (in["values"] * in["mask"]).sum(1, true));
  }
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(9, 6));
  torch::nn::Linear tags = register_module("tags", torch::nn::Linear(6, 2));
};

RunConfig tagging(const Mode& mode) {
  RunConfig config = config_for(mode);
  config.objective.ignored_classes = {kPadding};
  return config;
}

TEST(PaddedBatches, MatchOneRankForEverySplit) {
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(text(mode.ranks, " ranks, ", mode.accumulation, " rounds, ", mode.pipeline, " stages"));
    std::mutex mutex;
    std::vector<Evaluation> evaluations;
    const auto train = [&](comm::Context& context, const RunConfig& config) {
      const data::DataSource data = sentences();
      Trainer trainer(config, context, data, std::make_shared<Tagger>());
      while (!trainer.finished()) trainer.step();
      const Evaluation evaluation = trainer.evaluate();
      const std::lock_guard lock(mutex);
      evaluations.push_back(evaluation);
    };
    comm::run_ranks_as_threads(1, [&](comm::Context& context) { train(context, tagging({1})); });
    comm::run_ranks_as_threads(mode.ranks, [&](comm::Context& context) { train(context, tagging(mode)); });
    // With padding to another length, sums have the same numbers and more zeros.
    EXPECT_NEAR(evaluations[0].loss, evaluations[1].loss, 1e-5);
    EXPECT_EQ(evaluations[0].metric("accuracy"), evaluations[1].metric("accuracy"));
    EXPECT_EQ(evaluations[0].metric("accuracy").count, 197) << "words of all sentences";
    comm::run_ranks_as_threads(mode.ranks, [&](comm::Context& context) {
      const Comparison verdict = verify(tagging(mode), context, sentences(), 3,
                                        {.make_model = [] { return std::make_shared<Tagger>(); }});
      EXPECT_TRUE(verdict.equal() || !context.is_main())
          << (verdict.first() ? verdict.first()->describe() : "nothing compared");
    });
  }
}

void train_one_step(const RunConfig& config, const data::DataSource& data) {
  comm::run_ranks_as_threads(static_cast<int>(config.parallel.pipeline), [&](comm::Context& context) {
    Trainer(config, context, data, std::make_shared<Tagger>()).step();
  });
}

TEST(PaddedBatches, RejectsMeanThatDependsOnPadding) {
  RunConfig config = config_for({1});
  EXPECT_THAT([&] { train_one_step(config, sentences()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("name their class in objective.ignored_classes")));
  // Numbers, where padding counts like any other number.
  struct Numbers : data::Dataset {
    std::int64_t size() const override { return 50; }
    data::Example get(std::int64_t index) const override {
      const data::Example words = Sentences().get(index);
      return {words.input, {{"numbers", words.target->to(at::kFloat).unsqueeze(1).expand({-1, 2})}}};
    }
  };
  const auto split =
      data::padded(std::make_shared<Numbers>(), {{.field = "words", .mask = "mask"}, {.field = "numbers"}});
  config.objective.name = "mean_squared_error";
  EXPECT_THAT(
      [&] { train_one_step(config, {.name = "numbers", .train = split, .test = split}); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("the targets of a batch of 24 samples, 'numbers', Float of "
                                               "shape [24, 7, 2], count 336; expected 48"),
                                     HasSubstr("counts_by_value()"))));
}

TEST(PaddedBatches, AsynchronousPipelineNeedsKnownSizes) {
  struct Lengths : data::Dataset {
    std::int64_t size() const override { return 50; }
    data::Example get(std::int64_t index) const override {
      return {Sentences().get(index).input, at::full({}, index % 2)};
    }
  };
  const auto lengths = [](std::int64_t length) {
    const auto split =
        data::padded(std::make_shared<Lengths>(), {{.field = "words", .mask = "mask", .length = length}});
    return data::DataSource{.name = "lengths", .train = split, .test = split};
  };
  RunConfig config = config_for({2, 1, 2});
  config.parallel.schedule = "pipedream-2bw";
  struct FirstWord : objective::Objective {
    at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
      return (output.select(1, 0).select(1, 0) - target).square().sum();
    }
  };
  const auto train = [&](const data::DataSource& data) {
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      Trainer trainer(config, context, data, std::make_shared<Tagger>(), std::make_shared<FirstWord>());
      while (!trainer.finished() || !trainer.drained()) trainer.step();
    });
  };
  EXPECT_THAT([&] { train(lengths(0)); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("parallel.schedule = \"pipedream-2bw\""),
                                                   HasSubstr("data set lengths vary; pad to one size"))));
  EXPECT_NO_THROW(train(lengths(8)));
}

TEST(NamedBatches, FieldMissingForModelIsNamed) {
  EXPECT_THAT(
      [] {
        comm::run_ranks_as_threads(1, [&](comm::Context& context) {
          const data::DataSource data = likes();
          Trainer(config_for({1}), context, data, std::make_shared<Tagger>(), std::make_shared<Sure>());
        });
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("no field 'words' (known: user, item)")));
  EXPECT_THAT(
      [] {
        comm::run_ranks_as_threads(1, [&](comm::Context& context) {
          const data::DataSource data = likes();
          RunConfig config = config_for({1});
          config.objective.name = "mean_squared_error";
          Trainer(config, context, data, std::make_shared<Towers>());
        });
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("expected one tensor, found 2 fields: 'likes', Float")));
}

/// Without targets, numbers are reconstructed. Without inputs, the model is the mean of the observations.
TEST(NamedBatches, MayHaveNoTargetsOrNoInputs) {
  struct Numbers : data::Dataset {
    explicit Numbers(bool as_inputs) : as_inputs_(as_inputs) {}
    std::int64_t size() const override { return 20; }
    data::Example get(std::int64_t index) const override {
      const at::Tensor number = at::full({2}, static_cast<float>(index));
      return as_inputs_ ? data::Example{number, {}} : data::Example{{}, number};
    }
    bool as_inputs_;
  };
  struct Mean : model::Model {
    Mean() { model::initialise(*this, 1); }
    Fields forward_all(const Fields& inputs) override {
      const at::Tensor mean = linear->bias;
      return inputs.empty() ? mean : (*inputs - mean).square().sum(1);
    }
    torch::nn::Linear linear = register_module("linear", torch::nn::Linear(1, 2));
  };
  struct Squares : objective::Objective {
    at::Tensor loss_all(const Fields& outputs, const Fields& targets) const override {
      return targets.empty() ? outputs->sum() : (*targets - *outputs).square().sum();
    }
  };
  for (const bool as_inputs : {true, false}) {
    const auto split = std::make_shared<Numbers>(as_inputs);
    const data::DataSource data = {
        .name = "numbers",
        .train = split,
        .test = split,
        .input_shape = as_inputs ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{}};
    RunConfig config = config_for({1});
    config.parallel.unused_parameters = "find";
    config.train.global_batch = 20;
    std::vector<double> losses;
    for (const int ranks : {1, 2}) {
      comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
        Trainer trainer(config, context, data, std::make_shared<Mean>(), std::make_shared<Squares>());
        for (int i = 0; i < 2; ++i) trainer.step();
        const double loss = trainer.evaluate().loss;
        if (context.is_main()) losses.push_back(loss);
      });
    }
    EXPECT_NEAR(losses[0], losses[1], 1e-4) << as_inputs;
    EXPECT_GT(losses[0], 0);
  }
}

}  // namespace
}  // namespace trireme::train
