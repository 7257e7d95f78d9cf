// Tasks as objectives. For any task, any split of a batch over ranks, micro-batches and stages gives the loss
// and the gradients of one rank. User-defined data works in a whole run, and any metric can select the best
// checkpoint.

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <mutex>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/model/initialise.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Images whose target is not their class.
class Retargeted : public data::Dataset {
 public:
  using Of = at::Tensor (*)(const data::Example& sample);
  Retargeted(std::int64_t size, std::uint64_t split, Of target)
      : images_({.num_samples = size, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = split}),
        target_(target) {}
  std::int64_t size() const override { return images_.size(); }
  data::Example get(std::int64_t index) const override {
    data::Example sample = images_.get(index);
    sample.target = target_(sample);
    return sample;
  }

 private:
  data::SyntheticDataset images_;
  Of target_;
};

/// 50 samples. The last batch has 2 instead of 24.
data::DataSource data_with(Retargeted::Of target, std::int64_t num_classes) {
  return {.name = "small",
          .train = std::make_shared<Retargeted>(50, 0, target),
          .test = std::make_shared<Retargeted>(30, 1, target),
          .input_shape = {1, 6, 6},
          .num_classes = num_classes};
}
at::Tensor itself(const data::Example& sample) { return sample.input; }
at::Tensor its_class(const data::Example& sample) { return sample.target; }
at::Tensor bright(const data::Example& sample) { return sample.input->gt(0).to(at::kFloat).flatten(); }

/// The loss is the sum over samples of the squared outputs.
class WithOwnLoss : public model::Model {
 public:
  WithOwnLoss() {
    first_ = register_module("first", torch::nn::Linear(36, 5));
    last_ = register_module("last", torch::nn::Linear(5, 4));
    model::initialise(*this, 1);
  }
  at::Tensor forward(const at::Tensor& input) override {
    return last_->forward(first_->forward(input.flatten(1)));
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) override {
    return (output - target.unsqueeze(1)).square().sum();
  }
  std::vector<model::Layer> layers() override {
    return {model::make_layer(*this, "first", {first_.ptr()},
                              [this](const at::Tensor& input) { return first_->forward(input.flatten(1)); }),
            model::make_layer(*this, "last", {last_.ptr()},
                              [this](const at::Tensor& input) { return last_->forward(input); })};
  }

 private:
  torch::nn::Linear first_ = nullptr, last_ = nullptr;
};

RunConfig small_config(const objective::ObjectiveOptions& objective) {
  RunConfig config;
  config.model.hidden = {16, 8};
  config.train.global_batch = 24;
  config.train.epochs = 2;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.9;
  config.objective = objective;
  return config;
}

struct TaskCase {
  const char* name;
  objective::ObjectiveOptions objective;
  Retargeted::Of target = its_class;
  std::int64_t num_classes = 4;
};

std::ostream& operator<<(std::ostream& out, const TaskCase& row) { return out << row.name; }

const std::vector<TaskCase> kTasks = {
    {"Smoothed", {.label_smoothing = 0.1}},
    {"Ignored", {.metrics = {"accuracy", "top_k", "perplexity"}, .top_k = 2, .ignored_classes = {1, 2}}},
    {"Weighted", {.class_weights = {0.3, 2, 1, 0}}},
    {"SquaredError",
     {.name = "mean_squared_error", .metrics = {"mean_absolute_error", "root_mean_squared_error"}},
     itself,
     0},
    {"OneHot", {.name = "mean_squared_error", .metrics = {"accuracy", "top_k"}, .top_k = 2, .one_hot = true}},
    {"Binary", {.name = "binary_cross_entropy", .positive_weight = 3}, bright, 0},
    {"OfTheModel", {.name = "model"}},
};

class EveryTask : public testing::TestWithParam<TaskCase> {
 protected:
  data::DataSource data() const { return data_with(GetParam().target, GetParam().num_classes); }
  OwnParts own() const {
    if (GetParam().objective.name != "model") return {};
    return {.make_model = [] { return std::make_shared<WithOwnLoss>(); }};
  }
  std::shared_ptr<model::Model> own_model() const { return own().make_model ? own().make_model() : nullptr; }
};

TEST_P(EveryTask, MatchesOneRankForEverySplit) {
  struct Mode {
    int ranks;
    std::int64_t accumulation, pipeline;
  };
  for (const Mode& mode : {Mode{2, 1, 1}, Mode{3, 2, 1}, Mode{2, 1, 2}, Mode{4, 1, 2}}) {
    SCOPED_TRACE(text(mode.ranks, " ranks, ", mode.accumulation, " rounds, ", mode.pipeline, " stages"));
    RunConfig config = small_config(GetParam().objective);
    config.train.accumulation = mode.accumulation;
    config.parallel.pipeline = mode.pipeline;
    config.parallel.microbatches = mode.pipeline == 1 ? 0 : 2;
    comm::run_ranks_as_threads(mode.ranks, [&](comm::Context& context) {
      const Comparison verdict = verify(config, context, data(), 4, own());
      if (!context.is_main()) return;
      EXPECT_TRUE(verdict.equal()) << (verdict.first() ? verdict.first()->describe() : "nothing compared");
      EXPECT_EQ(verdict.num_steps(), 4);
    });
  }
}

TEST_P(EveryTask, HasEvaluationOfOneRankAnywhere) {
  std::optional<Evaluation> expected;
  for (const int ranks : {1, 3, 4}) {
    RunConfig config = small_config(GetParam().objective);
    config.parallel.pipeline = ranks == 4 ? 2 : 1;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      const data::DataSource source = data();
      Trainer trainer(config, context, source, own_model());
      const Evaluation found = trainer.evaluate();
      if (!context.is_main()) return;
      if (!expected) expected = found;
      EXPECT_EQ(found.samples, 30);
      EXPECT_NEAR(found.loss, expected->loss, 1e-6 * expected->loss);
      ASSERT_EQ(found.metrics.size(), expected->metrics.size());
      for (std::size_t i = 0; i < found.metrics.size(); ++i) {
        EXPECT_EQ(found.metrics[i].count, expected->metrics[i].count);
        EXPECT_NEAR(found.metrics[i].value, expected->metrics[i].value, 1e-6 * expected->metrics[i].value)
            << found.metrics[i].name;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryTask, testing::ValuesIn(kTasks),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ObjectiveRejected, StreamWithoutStepCountIsRejected) {
  RunConfig config = small_config({.ignored_classes = {1}});
  config.parallel.pipeline = 2;
  config.parallel.schedule = "pipedream";
  const data::DataSource data = data_with(its_class, 4);
  EXPECT_THAT(
      [&] { comm::run_ranks_as_threads(2, [&](comm::Context& c) { const Trainer t(config, c, data); }); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("pipedream"), HasSubstr("ignored_classes"))));
}

TEST(ObjectiveRejected, MismatchedOutputsAreRejected) {
  const data::DataSource data = data_with(itself, 0);
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    EXPECT_THAT(
        [&] {
          const Trainer trainer(small_config({.name = "mean_squared_error"}), context, data,
                                std::make_shared<WithOwnLoss>());
        },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("WithOwnLoss"), HasSubstr("Float of shape [1, 4]"),
                                             HasSubstr("Float of shape [1, 1, 6, 6]"))));
    EXPECT_THAT([&] { const Trainer trainer(small_config({}), context, data); },
                ThrowsMessage<InvalidArgument>(HasSubstr("mean_squared_error")));
  });
}

class OwnTask : public SmallRuns {
 protected:
  OwnTask() { data_ = data_with(itself, 0); }
  RunConfig task(const std::string& name) const {
    RunConfig result = config(name);
    result.objective.name = "mean_squared_error";
    result.train.global_batch = 10;
    result.eval.every_steps = 1;
    result.data.name = "image_folder";  // this data set is not opened
    return result;
  }
};

TEST_F(OwnTask, TrainsOnPassedDataAndWritesMetrics) {
  RunConfig config = task("own");
  config.run.tensorboard = true;
  config.parallel.pipeline = 2;
  const RunResult result = run(2, config);
  EXPECT_EQ(result.steps, 10);
  ASSERT_TRUE(result.evaluation.has_value());
  EXPECT_GT((*result.evaluation)["mean_absolute_error"], 0);
  EXPECT_THAT([&] { (void)(*result.evaluation)["accuracy"]; },
              ThrowsMessage<InvalidArgument>(HasSubstr("mean_absolute_error")));
  for (const char* name : {"metrics.jsonl", "summary.json"})
    EXPECT_THAT(file("own", name), HasSubstr("test_mean_absolute_error")) << name;
  const std::string page = file("own", "report.html");
  EXPECT_NE(page.find("Test mean absolute error"), std::string::npos) << "no chart of the metric";
  EXPECT_THAT(file("own", "summary.json"), testing::Not(HasSubstr("accuracy")));
}

TEST_F(OwnTask, BestStateFollowsNamedMetric) {
  RunConfig config = task("best");
  config.checkpoint.best = "mean_absolute_error";
  config.optimizer.lr = 0.3;  // so high that the last evaluation is not the best one
  std::pair<double, std::int64_t> best{1e9, 0};
  std::int64_t last = 0;
  callbacks_.on_evaluation = [&](std::int64_t step, const Evaluation& evaluation) {
    best = std::min(best, {evaluation["mean_absolute_error"], step});
    last = step;
    return RunControl::kContinue;
  };
  run(1, config);
  const auto kept = checkpoint::list_checkpoints(folder_ / "best/best");
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(checkpoint::load_checkpoint(kept[0]).step, best.second);
  EXPECT_LT(best.second, last) << "the last evaluation was the best: the test shows nothing";
  config.checkpoint.best = "mean_absolute_eror";
  EXPECT_THAT([&] { run(1, config); },
              ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'mean_absolute_error'")));
}

/// The metric at each evaluation, and the first one after `patience` consecutive ones without improvement.
struct Expected {
  std::int64_t operator()(double value) {
    ++evaluations;
    since = value < best ? 0 : since + 1;
    best = std::min(best, value);
    if (since == patience && ends_at == 0) ends_at = evaluations;
    return ends_at;
  }
  std::int64_t patience = 0, evaluations = 0, since = 0, ends_at = 0;
  double best = 1e9;
};

TEST_F(OwnTask, StopsWithoutProgressInNamedMetric) {
  RunConfig config = task("patient");
  config.optimizer.lr = 0.3;  // so high that some evaluations get worse
  config.eval.patience_metric = "mean_absolute_error";
  Expected expected{.patience = 2};
  callbacks_.on_evaluation = [&](std::int64_t, const Evaluation& evaluation) {
    expected(evaluation["mean_absolute_error"]);
    return RunControl::kContinue;
  };
  run(1, config);
  const std::int64_t of_all = expected.evaluations, end = expected.ends_at;
  ASSERT_GT(end, 0) << "no two in a row were no better: the test shows nothing";
  ASSERT_LT(end, of_all);
  config.run.name = "impatient";
  config.eval.patience = 2;
  expected = {.patience = 2};
  EXPECT_EQ(run(1, config).status, "stopped");
  EXPECT_EQ(expected.evaluations, end);
  config.eval.patience_metric = "mean_absolute_eror";
  EXPECT_THAT([&] { run(1, config); }, ThrowsMessage<InvalidArgument>(HasSubstr("eval.patience_metric")));
}

TEST_F(OwnTask, CountsFailedEvaluationsAcrossResume) {
  RunConfig config = task("resumed");
  config.optimizer.lr = 0.3;
  config.eval.patience = 2;
  config.checkpoint.every_steps = 1;
  std::int64_t evaluations = 0, most = 1000;
  callbacks_.on_evaluation = [&](std::int64_t, const Evaluation&) {
    return ++evaluations < most ? RunControl::kContinue : RunControl::kStop;
  };
  EXPECT_EQ(run(1, config).status, "stopped");
  const std::int64_t whole = evaluations;
  config.run.name = "in parts";
  evaluations = 0;
  most = whole - 1;  // one of the two did not improve
  run(1, config);
  std::filesystem::remove(folder_ / "in parts/summary.json");
  most = 1000;
  run(1, config, RunStart::kResume);
  EXPECT_EQ(evaluations, whole);
}

}  // namespace
}  // namespace trireme::train
