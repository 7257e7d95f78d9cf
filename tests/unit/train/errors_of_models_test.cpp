// Exceptions of a user's layer, loss, backward or data set name their step, stage and layer.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace nn = torch::nn;

enum class Thrower { kNobody, kFirst, kSecond, kLoss, kBackward, kEvaluation, kSamples, kEpoch };

/// Time and kind of the exception of user code.
struct Throws {
  Thrower who = Thrower::kNobody;
  int at_call = 1;
  std::function<void()> what = [] { throw std::runtime_error("not today"); };

  void count(Thrower caller) {
    if (caller == who && --at_call == 0) what();
  }
};

struct ThrowingBackward : torch::autograd::Function<ThrowingBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            Throws* throws) {
    context->saved_data["throws"] = reinterpret_cast<std::int64_t>(throws);
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    reinterpret_cast<Throws*>(context->saved_data["throws"].toInt())->count(Thrower::kBackward);
    return {gradients[0], at::Tensor()};
  }
};

struct ThrowingModel : model::Model {
  explicit ThrowingModel(Throws& of) : throws(of) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor run_first(const at::Tensor& x) {
    if (x.size(0) > 1 && is_training()) throws.count(Thrower::kFirst);
    return ThrowingBackward::apply(first->forward(x.flatten(1)), &throws);
  }
  at::Tensor run_second(const at::Tensor& x) {
    if (x.size(0) > 1) throws.count(is_training() ? Thrower::kSecond : Thrower::kEvaluation);
    return second->forward(x);
  }
  at::Tensor forward(const at::Tensor& input) override { return run_second(run_first(input)); }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& /*target*/) override {
    if (output.requires_grad()) throws.count(Thrower::kLoss);
    return output.square().sum();
  }
  std::vector<model::Layer> layers() override {
    return {model::make_layer(*this, "first", {first.ptr()},
                              [this](const at::Tensor& x) { return run_first(x); }),
            model::make_layer(*this, "second", {second.ptr()},
                              [this](const at::Tensor& x) { return run_second(x); })};
  }
  Throws& throws;
  nn::Linear first{16, 4}, second{4, 3};
};

class ThrowingSamples : public data::Dataset {
 public:
  explicit ThrowingSamples(Throws& throws) : throws_(throws) {}
  std::int64_t size() const override { return 16; }
  data::Example get(std::int64_t /*index*/) const override {
    return {at::ones({1, 4, 4}), at::full({}, 1, at::kLong)};
  }
  data::Example get_batch(std::span<const std::int64_t> indices) const override {
    if (indices.size() > 1) throws_.count(Thrower::kSamples);
    return Dataset::get_batch(indices);
  }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    if (epoch == 1) throws_.count(Thrower::kEpoch);
    return nullptr;
  }

 private:
  Throws& throws_;
};

/// The error message and exit code of a run of three steps with an evaluation.
Failure failure_of_run(Throws throws, int pipeline_ranks = 1) {
  Failure failure;
  const auto samples = std::make_shared<ThrowingSamples>(throws);
  const data::DataSource data{
      .name = "own", .train = samples, .test = samples, .input_shape = {1, 4, 4}, .num_classes = 3};
  RunConfig config;
  config.objective.name = "model";
  config.train.global_batch = 8;
  config.train.epochs = 2;
  config.data.prefetch = 1;
  config.parallel.pipeline = pipeline_ranks;
  if (pipeline_ranks > 1) config.parallel.microbatches = 2;
  // Otherwise the model is run before the first step, to time its layers.
  config.parallel.partition = "uniform";
  try {
    comm::run_ranks_as_threads(pipeline_ranks, [&](comm::Context& context) {
      Throws of_rank = throws;
      Trainer trainer(config, context, data, std::make_shared<ThrowingModel>(of_rank));
      while (!trainer.finished()) trainer.step();
      trainer.evaluate();
    });
  } catch (...) {
    failure = failure_of(std::current_exception());
  }
  return failure;
}

void expect_placed(const Failure& failure, const std::string& place, const std::string& what = "not today") {
  EXPECT_EQ(failure.exit_code, kExitUsage) << failure.message;
  EXPECT_THAT(failure.message, AllOf(testing::StartsWith(place), HasSubstr(": " + what)));
  EXPECT_THAT(failure.message, testing::Not(HasSubstr("frame #")));
}

TEST(ErrorsOfModels, NameStepStageAndLayer) {
  expect_placed(failure_of_run({.who = Thrower::kSecond, .at_call = 3}), "step 3, stage 0, layer '");
  expect_placed(failure_of_run({.who = Thrower::kFirst}), "step 1, stage 0, layer '");
}

TEST(ErrorsOfModels, OfALaterStageNameThat) {
  expect_placed(failure_of_run({.who = Thrower::kSecond, .at_call = 3}, /*pipeline_ranks=*/2),
                "step 2, stage 1, layer 'second'");
}

TEST(ErrorsOfModels, KeepLibtorchErrorsOfAnyType) {
  const auto of_second = [](std::function<void()> what) {
    return failure_of_run({.who = Thrower::kSecond, .at_call = 2, .what = std::move(what)});
  };
  const std::string place = "step 2, stage 0, layer '";
  expect_placed(of_second([] { at::ones({2, 3}).mm(at::ones({2, 3})); }), place, "mm: mat1 and mat2");
  expect_placed(of_second([] { throw InvalidArgument("a mask is missing"); }), place, "a mask is missing");
  expect_placed(of_second([] { throw 7; }), place, "an exception that is no std::exception");
  expect_placed(of_second([] { throw std::out_of_range("row 3"); }), place, "row 3");
}

TEST(ErrorsOfModels, OfOtherKindsPassAsTheyAre) {
  const auto thrown =
      failure_of_run({.who = Thrower::kSecond, .at_call = 2, .what = [] { throw CommError("rank 1 died"); }});
  EXPECT_EQ(thrown.exit_code, kExitComm);
  EXPECT_EQ(thrown.message, "rank 1 died");
}

TEST(ErrorsOfModels, LossAndBackwardNameMicroBatch) {
  expect_placed(failure_of_run({.who = Thrower::kLoss, .at_call = 2}),
                "step 2, stage 0, the loss of micro-batch 0");
  expect_placed(failure_of_run({.who = Thrower::kBackward, .at_call = 3}),
                "step 3, stage 0, the backward of layers '");
}

TEST(ErrorsOfModels, EvaluationNamesStepsBeforeIt) {
  expect_placed(failure_of_run({.who = Thrower::kEvaluation, .at_call = 2}),
                "the evaluation after step 4, stage 0, layer '");
}

TEST(ErrorsOfDataSets, NameTheStep) {
  const Failure of_samples = failure_of_run({.who = Thrower::kSamples, .at_call = 2});
  EXPECT_EQ(of_samples.exit_code, kExitData) << of_samples.message;
  EXPECT_THAT(of_samples.message, AllOf(HasSubstr("step 2: a batch of samples "), HasSubstr("not today")));
  const Failure of_epoch = failure_of_run({.who = Thrower::kEpoch});
  EXPECT_EQ(of_epoch.exit_code, kExitData) << of_epoch.message;
  EXPECT_THAT(of_epoch.message, AllOf(HasSubstr("step 3: a batch of "), HasSubstr("not today")));
}

/// The wrapper does not see the steps of a user-defined loop.
TEST(ErrorsOfModels, CustomLoopNamesLayer) {
  comm::run_ranks_as_threads(2, [](comm::Context& context) {
    Throws throws{.who = Thrower::kSecond};
    ThrowingModel model(throws);
    parallel::FullyShardedDataParallel sharded(context, model.layers());
    EXPECT_THAT(
        [&] {
          sharded.forward(at::ones({2, 1, 4, 4}));
        },
        testing::ThrowsMessage<InvalidArgument>("layer 'second': not today"));
  });
}

}  // namespace
}  // namespace trireme::train
