// Runs whose global batch grows.
#include "trireme/train/config/batch_ramp.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>

#include <mutex>

#include "tests/unit/ps/real_cluster.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/data/sampler.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/model/model.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/estimate/batch_search.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

TrainOptions growing() {
  return {.global_batch = 512, .batch_ramp_sizes = {64, 128}, .batch_ramp_steps = {1000, 3000}};
}

TEST(BatchRamp, HasDescriptionAndFitsShortRuns) {
  EXPECT_EQ(describe_batches(growing()), "64, 128 from step 1001 on, 512 from step 3001 on");
  EXPECT_EQ(describe_batches({.global_batch = 32}), "32");
  EXPECT_THAT(ramp_within(growing(), 3).batch_ramp_steps, ElementsAre(1, 2));
  EXPECT_THAT(ramp_within(growing(), 8).batch_ramp_steps, ElementsAre(2, 5));
  EXPECT_THAT(ramp_within(growing(), 8).batch_ramp_sizes, ElementsAre(64, 128));
  EXPECT_THAT(ramp_within(growing(), 2).batch_ramp_sizes, ElementsAre(128)) << "the last ones come";
  EXPECT_THAT(ramp_within(growing(), 1).batch_ramp_sizes, IsEmpty());
  EXPECT_THAT(ramp_within(growing(), 3001).batch_ramp_steps, ElementsAre(1000, 3000));
}

/// 70 samples: one epoch of 8, 8, 8, 16, 16 and the rest, and one of 16, 32 and the rest.
class RunsWithARamp : public SmallRuns {
 protected:
  RunsWithARamp() {
    const auto split = [](std::uint64_t number) {
      return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
          .num_samples = 70, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = number});
    };
    data_ = {
        .name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
  }
  static constexpr std::array<std::int64_t, 9> kSizes = {8, 8, 8, 16, 16, 14, 16, 32, 22};
  static constexpr std::array<std::int64_t, 9> kFull = {8, 8, 8, 16, 16, 16, 16, 32, 32};

  RunConfig ramp(const std::string& name, std::int64_t accumulation = 1) const {
    RunConfig result = config(name);
    result.train = {.epochs = 2,
                    .global_batch = 32,
                    .batch_ramp_sizes = {8, 16},
                    .batch_ramp_steps = {3, 7},
                    .accumulation = accumulation,
                    .clip_norm = 0};
    result.optimizer = {.name = "sgd", .lr = 0.02, .momentum = 0.9};
    result.learning_rate = {.scale_with_batch = "linear", .reference_batch = 8};
    result.checkpoint = {};
    return result;
  }

  /// The reports of a run's steps.
  std::vector<StepReport> reports(int ranks, const RunConfig& config) {
    std::vector<StepReport> all;
    std::mutex mutex;
    callbacks_.on_step = [&](const StepReport& report) {
      const std::lock_guard lock(mutex);
      if (all.empty() || all.back().step < report.step) all.push_back(report);
    };
    run(ranks, config);
    callbacks_ = {};
    return all;
  }

  checkpoint::TensorMap weights(const std::string& run) const {
    return checkpoint::load_weights_file(folder_.path() / run / "model.safetensors").tensors;
  }
  void expect_close(const std::string& found, const std::string& expected) const {
    for (const auto& [name, tensor] : weights(expected))
      EXPECT_TRUE(weights(found).at(name).allclose(tensor, 1e-5, 1e-6)) << found << ": " << name;
  }
};

// Uses nothing of Trireme except the model, the order of samples and their tensors.
TEST_F(RunsWithARamp, MatchLoopWithGrowingBatches) {
  RunConfig config = ramp("run");
  config.optimizer.momentum = 0;
  const std::vector<StepReport> found = reports(1, config);
  ASSERT_EQ(found.size(), kSizes.size());
  const auto model =
      model::make_model(config.model, {1, 6, 6}, 4, static_cast<std::uint64_t>(config.run.seed));
  const data::Sampler sampler(70, {.seed = static_cast<std::uint64_t>(config.run.seed)});
  const auto& samples = dynamic_cast<const data::Dataset&>(*data_->train);
  std::int64_t place = 0;
  std::uint64_t epoch = 0;
  for (std::size_t step = 0; step < kSizes.size(); ++step) {
    std::vector<std::int64_t> indices;
    for (const std::int64_t end = place + kSizes[step]; place < end; ++place)
      indices.push_back(sampler.order_of(epoch)[place]);
    if (place == 70) place = 0, ++epoch;
    const data::Example batch = samples.get_batch(indices);
    const at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(*batch.input), *batch.target);
    model->zero_grad();
    loss.backward();
    const at::NoGradGuard no_grad;
    const double rate = 0.02 * static_cast<double>(kFull[step]) / 8;
    for (const at::Tensor& parameter : model->parameters()) parameter.detach().sub_(parameter.grad(), rate);
    EXPECT_NEAR(found[step].loss, loss.item<double>(), 1e-5) << step;
    EXPECT_EQ(found[step].samples, kSizes[step]) << step;
    EXPECT_EQ(found[step].full_batch, kFull[step]) << step;
    EXPECT_DOUBLE_EQ(found[step].lr, rate) << step;
  }
  const checkpoint::TensorMap trained = weights("run");
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(trained.at(item.key()).allclose(item.value(), 1e-5, 1e-6)) << item.key();
}

TEST_F(RunsWithARamp, HaveTheSameNumbersOnAnyRanks) {
  const std::vector<StepReport> expected = reports(1, ramp("1-1"));
  for (const auto& [ranks, accumulation] : {std::pair{1, 4}, {2, 1}, {2, 4}, {3, 2}, {4, 2}}) {
    const std::string name = text(ranks, "-", accumulation);
    const std::vector<StepReport> found = reports(ranks, ramp(name, accumulation));
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i].loss, expected[i].loss, 1e-5 * expected[i].loss) << name << " step " << i + 1;
    expect_close(name, "1-1");
  }
  const RunResult ranks = run(2, ramp("ranks")), microbatches = run(1, ramp("microbatches", 2));
  EXPECT_EQ(ranks.weights_xxh3, microbatches.weights_xxh3);
}

TEST_F(RunsWithARamp, HaveSameNumbersOnAnyLayout) {
  run(1, ramp("one"));
  RunConfig cut = ramp("cut"), sharded = ramp("sharded"), served = ramp("served"), dynamic = ramp("dynamic");
  cut.parallel = {.pipeline = 2, .microbatches = 4};
  run(4, cut);
  sharded.parallel.zero = 3;
  run(4, sharded);
  const ps::RealCluster servers(2);
  served.parallel.mode = "ps";
  served.served = {.coordinator = servers.address()};
  run(2, served);
  dynamic.data.balance = "dynamic";
  run(3, dynamic);
  for (const char* name : {"cut", "sharded", "served", "dynamic"}) expect_close(name, "one");
  RunConfig sites = ramp("sites");
  sites.parallel.local_steps = 2;
  const std::vector<StepReport> found = reports(2, sites);
  ASSERT_EQ(found.size(), kSizes.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].count, kSizes[i]) << "step " << i + 1;
}

TEST_F(RunsWithARamp, ContinueMidRampWithSameBits) {
  for (const std::int64_t at : {2, 3, 5, 7}) {
    const std::string name = text("at-", at);
    RunConfig config = ramp(name, 2);
    config.optimizer.name = "adamw";
    const RunResult straight = run(2, config);
    config.run.name = "resumed-" + name;
    config.train.max_steps = at;
    run(2, config);
    config.train.max_steps = 0;
    EXPECT_EQ(run(2, config, RunStart::kResume).weights_xxh3, straight.weights_xxh3) << name;
    EXPECT_EQ(run(2, config, RunStart::kResume).evaluation, std::nullopt) << "there was nothing left to do";
    RunConfig moved = config;
    moved.run.name = "moved-" + name;
    moved.train.max_steps = at;
    run(2, moved);
    moved.train = ramp("").train;
    run(4, moved, RunStart::kResume);
    for (const auto& [tensor, values] : weights(name))
      EXPECT_TRUE(weights("moved-" + name).at(tensor).allclose(values, 1e-3, 1e-4)) << tensor;
  }
}

TEST_F(RunsWithARamp, AreNotResumedWithAnother) {
  RunConfig config = ramp("begun");
  config.train.max_steps = 5;
  run(2, config);
  config.train.max_steps = 0;
  const auto refused = [&](std::vector<std::int64_t> sizes, std::vector<std::int64_t> steps,
                           const char* message) {
    RunConfig changed = config;
    changed.train.batch_ramp_sizes = std::move(sizes);
    changed.train.batch_ramp_steps = std::move(steps);
    EXPECT_THAT([&] { run(2, changed, RunStart::kResume); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("cannot resume"), HasSubstr(message))));
  };
  refused({8, 16}, {3, 8}, "train.batch_ramp_steps was [3, 7] and is now [3, 8]");
  refused({8, 24}, {3, 7}, "train.batch_ramp_sizes was [8, 16] and is now [8, 24]");
  refused({}, {}, "train.batch_ramp_sizes was [8, 16] and is now []");
  EXPECT_EQ(run(2, config, RunStart::kResume).steps, 9);
}

TEST_F(RunsWithARamp, GrowInPipelinesThatUpdateUnderWay) {
  for (const char* schedule : {"pipedream", "pipedream-2bw"}) {
    RunConfig config = ramp(schedule);
    config.train.batch_ramp_sizes = {9, 16};
    config.parallel = {.pipeline = 2, .schedule = schedule};
    const std::vector<StepReport> found = reports(2, config);
    std::vector<std::int64_t> sizes;
    for (const StepReport& report : found) sizes.push_back(report.samples);
    EXPECT_THAT(sizes, ElementsAre(9, 9, 9, 16, 16, 11, 16, 32, 22));
    config.checkpoint = {.every_steps = 4, .keep = 2};
    config.run.name += "-whole";
    const RunResult whole = run(2, config);
    config.run.name += "-resumed";
    config.train.max_steps = 4;
    run(2, config);
    config.train.max_steps = 0;
    EXPECT_EQ(run(2, config, RunStart::kResume).weights_xxh3, whole.weights_xxh3);
  }
}

TEST_F(RunsWithARamp, HaveSameBitsOnRequest) {
  RunConfig one = ramp("one", 4), four = ramp("four", 1), two = ramp("two", 1);
  one.run.exact = four.run.exact = two.run.exact = true;
  two.parallel = {.pipeline = 2, .microbatches = 4};
  const std::string expected = run(1, one).weights_xxh3;
  EXPECT_EQ(run(4, four).weights_xxh3, expected);
  EXPECT_EQ(run(2, two).weights_xxh3, expected);
}

TEST_F(RunsWithARamp, ScaleRateWithBatchOfStep) {
  RunConfig config = ramp("sqrt");
  config.learning_rate.scale_with_batch = "sqrt";
  config.learning_rate.schedule = "exponential";
  config.learning_rate.period_steps = 4;
  const std::vector<StepReport> root = reports(2, config);
  config.run.name = "none";
  config.learning_rate.scale_with_batch = "none";
  const std::vector<StepReport> none = reports(2, config);
  ASSERT_EQ(root.size(), kFull.size());
  for (std::size_t i = 0; i < root.size(); ++i) {
    const double schedule = 0.02 * std::pow(0.1, static_cast<double>(i) / 4);
    EXPECT_NEAR(root[i].lr, schedule * std::sqrt(static_cast<double>(kFull[i]) / 8), 1e-12) << i;
    EXPECT_NEAR(none[i].lr, schedule, 1e-12) << i;
  }
}

TEST_F(RunsWithARamp, SayHowLargeTheBatchIs) {
  run(2, ramp("told"));
  EXPECT_THAT(file("told", "console.log"),
              AllOf(HasSubstr("global batch 8, 16 from step 4 on, 32 from step 8 on, 2 ranks"),
                    HasSubstr("lr 0.08  batch 32")));
  const std::string metrics = file("told", "metrics.jsonl");
  EXPECT_EQ(num_lines(metrics, "\"batch\":8,"), 3u);
  EXPECT_EQ(num_lines(metrics, "\"batch\":16,"), 4u);
  EXPECT_EQ(num_lines(metrics, "\"batch\":32,"), 2u);
  EXPECT_THAT(file("told", "report.html"), HasSubstr("samples per step"));
  run(2, config("plain"));
  EXPECT_THAT(file("plain", "metrics.jsonl"), testing::Not(HasSubstr("\"batch\":")));
}

TEST_F(RunsWithARamp, AreVerifiedAtEachSize) {
  RunConfig config = ramp("verified", 2);
  config.train.batch_ramp_steps = {300, 700};
  config.train.epochs = 200;
  config.parallel.zero = 2;
  std::vector<std::int64_t> seen;
  std::mutex mutex;
  struct Seen : data::Dataset {
    Seen(std::shared_ptr<const data::Dataset> inner, std::vector<std::int64_t>& rows, std::mutex& guard)
        : inner(std::move(inner)), rows(rows), guard(guard) {}
    std::int64_t size() const override { return inner->size(); }
    data::Example get(std::int64_t index) const override { return inner->get(index); }
    data::Example get_batch(std::span<const std::int64_t> indices) const override {
      const std::lock_guard lock(guard);
      rows.push_back(std::ssize(indices));
      return inner->get_batch(indices);
    }
    const std::shared_ptr<const data::Dataset> inner;
    std::vector<std::int64_t>& rows;
    std::mutex& guard;
  };
  data_->train = std::make_shared<Seen>(data::indexed(data_->train), seen, mutex);
  std::optional<Comparison> verdict;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Comparison mine = verify(config, context, *data_, 3);
    if (context.is_main()) verdict = mine;
  });
  EXPECT_TRUE(verdict->equal()) << verdict->first()->describe();
  EXPECT_EQ(verdict->num_steps(), 3);
  for (const std::int64_t of_part : {2, 4, 8}) EXPECT_THAT(seen, testing::Contains(of_part));
}

TEST_F(RunsWithARamp, AreSearchedForABatchWithoutIt) {
  const RunConfig config = ramp("searched");
  std::vector<std::int64_t> tried;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const BatchSearch search =
        search_batches(resolve_plan(config, 2), context, *data_,
                       {.max_samples = 64, .memory_limit_bytes = 1 << 30, .trial_s = 0.01, .noise_steps = 4});
    if (!context.is_main()) return;
    for (const BatchTrial& trial : search.trials) tried.push_back(trial.global_batch);
  });
  EXPECT_THAT(tried, ElementsAre(8, 16, 32, 64));
}

/// Supports one batch size only.
class OneSize : public data::TrainingData {
 public:
  explicit OneSize(std::shared_ptr<const data::TrainingData> inner) : inner_(std::move(inner)) {}
  std::int64_t size() const override { return inner_->size(); }
  data::Example trial_batch(std::int64_t samples) const override { return inner_->trial_batch(samples); }
  std::unique_ptr<data::BatchStream> open(const data::StreamOptions& options) const override {
    data::StreamOptions plain = options;
    plain.ramp = {};
    return inner_->open(plain);
  }

 private:
  std::shared_ptr<const data::TrainingData> inner_;
};

TEST_F(RunsWithARamp, RejectDataThatHandOverAnotherBatch) {
  data_->train = std::make_shared<OneSize>(data_->train);
  EXPECT_THAT([&] { run(2, ramp("other")); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("the data have handed over 32 samples as the batch of step 1, which has 8")));
}

}  // namespace
}  // namespace trireme::train
