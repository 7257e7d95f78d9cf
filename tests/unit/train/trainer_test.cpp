#include "trireme/train/step/trainer.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <mutex>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/model/mlp.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/step/model_state.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

/// 70 small images: with a global batch of 32 an epoch is 32, 32 and 6 samples.
data::DataSource small_data(std::int64_t num_samples = 70) {
  const auto split = [&](std::uint64_t number) {
    return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
        .num_samples = num_samples, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = number});
  };
  return {.name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
}

RunConfig small_config(std::int64_t accumulation = 1) {
  RunConfig config;
  config.model.hidden = {16};
  config.train.epochs = 2;
  config.train.global_batch = 32;
  config.train.accumulation = accumulation;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.9;
  config.run.log_every_steps = 1;
  return config;
}

struct Outcome {
  std::vector<double> losses, norms;
  checkpoint::TensorMap weights;
};

/// Trains to the end on `ranks` threads. Returns the results of rank 0.
Outcome train_on(int ranks, const RunConfig& config, const data::DataSource& data) {
  Outcome outcome;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    Trainer trainer(config, context, data);
    Outcome mine;
    const auto take = [&](const std::optional<StepReport>& report) {
      if (!report) return;
      mine.losses.push_back(report->loss);
      mine.norms.push_back(report->grad_norm.value_or(-1));
    };
    while (!trainer.finished()) take(trainer.step());
    take(trainer.last_report());
    for (const auto& [name, tensor] : state_of(trainer.model())) mine.weights[name] = tensor.clone();
    if (context.is_main()) outcome = std::move(mine);
  });
  return outcome;
}

double largest_difference(const checkpoint::TensorMap& a, const checkpoint::TensorMap& b) {
  double largest = 0;
  for (const auto& [name, tensor] : a) {
    largest = std::max(largest, (tensor - b.at(name)).abs().max().item<double>());
  }
  return largest;
}

struct Split {
  int ranks;
  std::int64_t accumulation;
};

// The splits differ only in the order of f32 additions. Each of the six steps adds at most 32 terms in
// another order. That is a relative error of a few 2^-24 per step, here bounded by 1e-5.
TEST(TrainerEquality, GlobalBatchGivesSameNumbersEverywhere) {
  const data::DataSource data = small_data();
  const Outcome expected = train_on(1, small_config(), data);
  ASSERT_EQ(expected.losses.size(), 6u);
  EXPECT_LT(expected.losses[5], expected.losses[0]);
  for (const Split split : {Split{1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {3, 1}, {4, 1}, {4, 2}, {4, 4}}) {
    SCOPED_TRACE(text(split.ranks, " ranks, accumulation ", split.accumulation));
    const Outcome found = train_on(split.ranks, small_config(split.accumulation), data);
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < found.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << "step " << i + 1;
      EXPECT_NEAR(found.norms[i], expected.norms[i], 1e-5 * expected.norms[i]) << "step " << i + 1;
    }
    EXPECT_LT(largest_difference(found.weights, expected.weights), 1e-5);
  }
}

// Two parts are added in the same order, whether they are ranks or micro-batches.
TEST(TrainerEquality, TwoRanksAreBitwiseTwoMicrobatches) {
  const data::DataSource data = small_data(64);
  const Outcome ranks = train_on(2, small_config(1), data), microbatches = train_on(1, small_config(2), data);
  EXPECT_EQ(ranks.losses, microbatches.losses);
  EXPECT_EQ(checkpoint::xxh3_of(ranks.weights), checkpoint::xxh3_of(microbatches.weights));
}

TEST(TrainerEquality, ClippingUsesGradientOfGlobalBatch) {
  const data::DataSource data = small_data();
  RunConfig one = small_config(), four = small_config(2);
  one.train.clip_norm = four.train.clip_norm = 0.05;
  const Outcome expected = train_on(1, one, data), found = train_on(2, four, data);
  EXPECT_GT(expected.norms[0], 0.05);
  EXPECT_LT(largest_difference(found.weights, expected.weights), 1e-5);
  EXPECT_GT(largest_difference(found.weights, train_on(1, small_config(), data).weights), 1e-3);
}

// The loss is a mean over tokens. A new model gives each of the eight characters about the same probability.
TEST(TrainerEquality, SequencesGiveSameNumbersForAnySplit) {
  const test::TemporaryFolder folder;
  std::string text_of_file;
  for (int i = 0; i < 400; ++i) text_of_file += static_cast<char>('a' + i * i % 8 + (i % 5 == 0));
  write_file_atomic(folder / "text.txt", text_of_file);
  const data::DataSource data =
      data::open_data({.name = "text", .path = (folder / "text.txt").string(), .block = 8});
  const auto config = [](std::int64_t accumulation) {
    RunConfig result = small_config(accumulation);
    result.model = {.name = "gpt", .layers = 2, .heads = 2, .width = 16};
    result.train.max_steps = 6;
    return result;
  };
  const Outcome expected = train_on(1, config(1), data);
  EXPECT_NEAR(expected.losses[0], std::log(static_cast<double>(data.num_classes)), 0.1);
  EXPECT_LT(expected.losses[5], expected.losses[0]);
  for (const Split split : {Split{1, 3}, {2, 1}, {4, 2}}) {
    const Outcome found = train_on(split.ranks, config(split.accumulation), data);
    EXPECT_NEAR(found.losses[5], expected.losses[5], 1e-5 * expected.losses[5]) << split.ranks;
    EXPECT_LT(largest_difference(found.weights, expected.weights), 1e-5) << split.ranks;
  }
}

TEST(Trainer, OverflowingFp16SkipsStepOnAllRanks) {
  RunConfig config = small_config();
  config.train.precision = "fp16";
  config.train.epochs = 4;
  // So large that gradients overflow fp16 until the scale has fallen a few times.
  config.scaler = {.initial = 0x1p40, .factor = 16, .most = 0x1p40};
  std::mutex mutex;
  std::vector<std::vector<double>> scales(2);
  std::vector<std::vector<bool>> skipped(2);
  std::vector<std::string> digests(2);
  std::vector<double> losses;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = small_data();
    Trainer trainer(config, context, data);
    std::vector<StepReport> reports;
    while (!trainer.finished()) {
      if (const auto report = trainer.step()) reports.push_back(*report);
    }
    reports.push_back(*trainer.last_report());
    const std::lock_guard lock(mutex);
    const auto rank = static_cast<std::size_t>(context.rank());
    for (const StepReport& report : reports) {
      scales[rank].push_back(report.loss_scale.value());
      skipped[rank].push_back(report.skipped);
      if (rank == 0) losses.push_back(report.loss);
    }
    digests[rank] = checkpoint::xxh3_of(state_of(trainer.model()));
  });
  EXPECT_TRUE(skipped[0].front()) << "nothing overflowed";
  EXPECT_FALSE(skipped[0].back());
  EXPECT_LT(scales[0].back(), scales[0].front());
  EXPECT_LT(losses.back(), losses.front()) << "nothing was learnt";
  EXPECT_EQ(scales[0], scales[1]);
  EXPECT_EQ(skipped[0], skipped[1]);
  EXPECT_EQ(digests[0], digests[1]);
}

TEST(Trainer, Fp16AtMinimumScaleNamesStep) {
  RunConfig config = small_config();
  config.train.precision = "fp16";
  config.scaler = {.initial = 0x1p40, .least = 0x1p39, .most = 0x1p40};
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const data::DataSource data = small_data();
    Trainer trainer(config, context, data);
    trainer.step();
    try {
      trainer.step();
      FAIL() << "no error";
    } catch (const DivergedError& error) {
      EXPECT_THAT(error.what(), HasSubstr("step 2: gradients are not finite although the loss scale"));
    }
  });
}

TEST(Trainer, NonFiniteStepIsSkippedOnRequest) {
  RunConfig config = small_config();
  config.train.non_finite = "skip";
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = small_data();
    Trainer trainer(config, context, data);
    const std::string before = checkpoint::xxh3_of(state_of(trainer.model()));
    at::Tensor first = trainer.parameters().front().second;
    const at::Tensor saved = first.detach().clone();
    {
      const at::NoGradGuard no_grad;
      // Only on one rank. The reduction spreads it to all.
      if (context.rank() == 1) first.fill_(std::numeric_limits<float>::infinity());
    }
    trainer.step();
    {
      const at::NoGradGuard no_grad;
      first.copy_(saved);
    }
    const StepReport report = *trainer.last_report();
    EXPECT_TRUE(report.skipped);
    EXPECT_TRUE(std::isnan(report.loss));
    EXPECT_EQ(checkpoint::xxh3_of(state_of(trainer.model())), before) << "something was updated";
    trainer.step();
    EXPECT_FALSE(trainer.last_report()->skipped);
  });
}

TEST(Trainer, OnlyEvaluationsUseMovingAverage) {
  RunConfig plain = small_config(), averaged = small_config();
  averaged.train.ema_decay = 0.9;
  const auto train = [](const RunConfig& config, bool evaluate) {
    std::pair<double, std::string> result;
    comm::run_ranks_as_threads(1, [&](comm::Context& context) {
      const data::DataSource data = small_data();
      Trainer trainer(config, context, data);
      while (!trainer.finished()) {
        trainer.step();
        if (evaluate) result.first = trainer.evaluate().loss;
      }
      result.second = checkpoint::xxh3_of(state_of(trainer.model()));
    });
    return result;
  };
  const auto expected = train(plain, true), found = train(averaged, true);
  EXPECT_EQ(found.second, expected.second) << "the average changed what is trained";
  EXPECT_GT(found.first, expected.first + 1e-3) << "an average of early weights is behind";
  EXPECT_EQ(train(averaged, false).second, found.second);
}

TEST(Trainer, Bf16TrainsToo) {
  RunConfig config = small_config();
  config.train.precision = "bf16";
  const Outcome found = train_on(2, config, small_data());
  EXPECT_LT(found.losses.back(), found.losses.front());
  EXPECT_EQ(found.weights.begin()->second.scalar_type(), at::kFloat);
}

/// Samples with non-finite values.
class BrokenDataset : public data::Dataset {
 public:
  explicit BrokenDataset(std::shared_ptr<const data::Dataset> inner) : inner_(std::move(inner)) {}
  std::int64_t size() const override { return inner_->size(); }
  data::Example get(std::int64_t index) const override {
    data::Example example = inner_->get(index);
    example.input = example.input->sign() * std::numeric_limits<float>::max();  // the first layer overflows
    return example;
  }

 private:
  std::shared_ptr<const data::Dataset> inner_;
};

TEST(Trainer, RanksNameStepOfNonFiniteLoss) {
  std::mutex mutex;
  std::vector<std::string> messages;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    data::DataSource data = small_data();
    RunConfig config = small_config();
    config.run.log_every_steps = 1;  // both ranks see that the gradient norm is NaN
    if (context.rank() == 1) data.train = std::make_shared<BrokenDataset>(data::indexed(data.train));
    Trainer trainer(config, context, data);
    try {
      trainer.step();
      trainer.step();
    } catch (const DivergedError& error) {
      const std::lock_guard lock(mutex);
      messages.emplace_back(error.what());
    }
  });
  ASSERT_EQ(messages.size(), 2u);
  for (const std::string& message : messages) {
    EXPECT_THAT(message, HasSubstr("step 1: the loss or the gradient is not a finite number on rank 1 "));
  }
}

TEST(Trainer, AnnouncesParameterChanges) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const data::DataSource data = small_data();
    RunConfig config = small_config();
    config.train.ema_decay = 0.9;  // evaluations replace the parameters by averages
    Trainer trainer(config, context, data);
    const at::Tensor weight = trainer.parameters()[0].second;
    at::Tensor told;
    trainer.before_changes([&] { told = weight.detach().clone(); });
    for (const bool evaluate : {false, true, false}) {
      const at::Tensor before = weight.detach().clone();
      told = at::Tensor();
      evaluate ? static_cast<void>(trainer.evaluate()) : static_cast<void>(trainer.step());
      ASSERT_TRUE(told.defined());
      EXPECT_TRUE(told.equal(before));
      EXPECT_EQ(weight.equal(before), evaluate);
    }
  });
}

TEST(Snapshot, SharesParametersAndCopiesBuffers) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const data::DataSource data = data::open_data({.name = "synthetic"});
    RunConfig config = small_config();
    config.model.name = "resnet18";
    Trainer trainer(config, context, data);
    checkpoint::SaveShares shares(context.world(), state_to_save(trainer, {}), {true});
    const checkpoint::CheckpointPart snapshot = *snapshot_of(trainer, shares, {}, config);
    const auto saved = [&](const std::string& name) {
      return std::find_if(snapshot.shards.begin(), snapshot.shards.end(),
                          [&](const checkpoint::Shard& shard) { return shard.name == name; })
          ->tensor;
    };
    const at::Tensor mean = trainer.model().named_buffers()["bn1.running_mean"];
    const at::Tensor before = mean.clone();
    trainer.model().forward(data.train->trial_batch(2).input);
    ASSERT_FALSE(mean.equal(before)) << "the forward changes it";
    EXPECT_TRUE(saved("bn1.running_mean").equal(before));
    EXPECT_TRUE(saved("fc.weight").is_alias_of(trainer.model().named_parameters()["fc.weight"]));
  });
}

/// The first sample, which is checked before the first step, is valid. A later one has an invalid class.
class LateClass : public data::Dataset {
 public:
  explicit LateClass(std::shared_ptr<const data::Dataset> inner) : inner_(std::move(inner)) {}
  std::int64_t size() const override { return inner_->size(); }
  data::Example get(std::int64_t index) const override {
    data::Example example = inner_->get(index);
    example.target->fill_(index == 5 ? 3 : 0);
    return example;
  }

 private:
  std::shared_ptr<const data::Dataset> inner_;
};

TEST(Trainer, LabelBeyondClassesIsDataError) {
  data::DataSource data = small_data();
  data.train = std::make_shared<LateClass>(data::indexed(data.train));
  data.test = std::make_shared<LateClass>(data.test);
  data.num_classes = 3;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Trainer trainer(small_config(), context, data);
    const auto names_it =
        testing::ThrowsMessage<DataError>(testing::ContainsRegex("sample 5 .*class 3.*0 to 2"));
    EXPECT_THAT(
        [&] {
          while (!trainer.finished()) trainer.step();
        },
        names_it);
    EXPECT_THAT([&] { trainer.evaluate(); }, names_it);
  });
}

/// Outputs two rows of logits for each sample.
class TwoRows : public model::Model {
 public:
  TwoRows() { linear_ = register_module("linear", torch::nn::Linear(36, 8)); }
  at::Tensor forward(const at::Tensor& input) override {
    return linear_->forward(input.flatten(1)).reshape({-1, 2, 4});
  }

 private:
  torch::nn::Linear linear_ = nullptr;
};

TEST(Trainer, RejectsModelWithMismatchedOutputs) {
  const data::DataSource data = small_data();
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    EXPECT_THAT([&] { Trainer(small_config(), context, data, std::make_shared<TwoRows>()); },
                testing::ThrowsMessage<InvalidArgument>(testing::AllOf(
                    HasSubstr("TwoRows"), HasSubstr("\"small\""), HasSubstr("1 targets of 4 classes"))));
  });
}

TEST(Trainer, StopOfOneRankReachesAll) {
  const data::DataSource data = small_data();
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Trainer trainer(small_config(), context, data);
    EXPECT_FALSE(trainer.step(context.rank() == 1 ? SIGTERM : 0).has_value());
    const std::optional<StepReport> report = trainer.step();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->stop_signal, SIGTERM);
    EXPECT_EQ(trainer.last_report()->stop_signal, 0);
  });
}

TEST(Evaluation, CountsSamplesOnceOnAnyRanks) {
  for (const std::int64_t num_samples : {2, 11}) {
    const data::DataSource data = small_data(num_samples);
    std::optional<Evaluation> expected;
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(text(num_samples, " samples, ", ranks, " ranks"));
      comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
        const auto model = model::make_model({.hidden = {16}}, data.input_shape, data.num_classes, 1);
        const data::Slice part = data::slice_of(data.test->size(), context.rank(), ranks);
        const Evaluation found = evaluate([&](const at::Tensor& input) { return model->forward(input); },
                                          // Like the split of a batch over ranks.
                                          {.dataset = *data.test, .part = part, .batch = 8 / ranks},
                                          *objective::make_objective({}, {.data = data}), context);
        if (!context.is_main()) return;
        if (!expected) expected = found;
        EXPECT_EQ(found.samples, num_samples);
        EXPECT_EQ(found.metrics, expected->metrics);
        EXPECT_NEAR(found.loss, expected->loss, 1e-6 * expected->loss);
        EXPECT_TRUE(model->is_training());
      });
    }
  }
}

/// Records the largest batch that it gets.
struct Watched : model::Mlp {
  Watched() : Mlp(784, {4}, 10) { initialise(1); }
  at::Tensor forward(const at::Tensor& input) override {
    std::int64_t& largest = is_training() ? largest_trained : largest_evaluated;
    largest = std::max(largest, input.size(0));
    return Mlp::forward(input);
  }
  std::int64_t largest_trained = 0, largest_evaluated = 0;
};

TEST(Evaluation, UsesBatchSizeOfTraining) {
  const data::DataSource data = data::open_data({.name = "synthetic"});
  for (const std::int64_t accumulation : {1, 3}) {
    RunConfig config = small_config();
    config.train.global_batch = 300;
    config.train.accumulation = accumulation;
    const auto context = comm::Context::join({}, {});
    const auto model = std::make_shared<Watched>();
    Trainer trainer(config, *context, data, model);
    trainer.step();
    EXPECT_EQ(trainer.evaluate().samples, 1024);
    EXPECT_EQ(model->largest_trained, 300 / accumulation);
    EXPECT_EQ(model->largest_evaluated, 300 / accumulation);
  }
}

}  // namespace
}  // namespace trireme::train
