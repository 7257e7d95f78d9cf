// Data loading in a run: the waiting ranks and the reasons, and samples that are generated during the run.

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/unit/train/slow_samples.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/data/decorators.h"
#include "trireme/data/producer.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class Loading : public SmallRuns {};

/// Samples on a slow disk.
class SlowToRead : public data::Dataset {
 public:
  explicit SlowToRead(std::shared_ptr<const Dataset> samples) : samples_(std::move(samples)) {}
  std::int64_t size() const override { return samples_->size(); }
  data::Example get(std::int64_t index) const override { return samples_->get(index); }
  data::Example get_batch(std::span<const std::int64_t> indices) const override {
    const data::StageScope reading(data::Stage::kRead);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    data::count_read(1000);
    return samples_->get_batch(indices);
  }

 private:
  std::shared_ptr<const Dataset> samples_;
};

TEST_F(Loading, RunNamesRankAndWaitingStage) {
  RunConfig config = this->config("slow");
  config.data.workers = 1;
  RunResult result;
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    data::DataSource data = data::open_data(config.data);
    if (context.rank() == 1) data.train = std::make_shared<SlowToRead>(data::indexed(data.train));
    const RunResult mine = run_training(config, context, {.data = data});
    if (context.is_main()) result = mine;
  });
  EXPECT_EQ(result.loading.wait_shares.size(), 3U);
  EXPECT_EQ(result.loading.slowest_rank(), 1);
  EXPECT_EQ(result.loading.stages[1], "read");
  const auto& shares = result.loading.stage_shares;
  ASSERT_EQ(shares.size(), data::kNumStages);
  EXPECT_GT(shares[static_cast<std::size_t>(data::Stage::kRead)], 0);
  EXPECT_EQ(shares[static_cast<std::size_t>(data::Stage::kDecode)], 0);
  EXPECT_LE(std::accumulate(shares.begin(), shares.end(), 0.0), 1 + 1e-9);
  EXPECT_GE(result.loading.bytes_read, 12 * 1000);
  EXPECT_THAT(describe(result.loading), AllOf(HasSubstr("for data on rank 1, which waited most"),
                                              HasSubstr("slowest stage there: read"), HasSubstr("; read 1")));
  EXPECT_GE(num_lines(file("slow", "metrics.jsonl"), R"("data_wait_rank":1,"data_wait_stage":"read")"), 7U)
      << "most of 12 steps: on a busy machine another rank may be kept waiting longer, now and then";
  EXPECT_THAT(file("slow", "summary.json"), AllOf(HasSubstr(R"("loading_wait_rank_1": )"),
                                                  HasSubstr(R"("loading_slowest_stage_rank_1": "read")")));
  EXPECT_THAT(file("slow", "report.html"),
              AllOf(HasSubstr("rank 1 waited"), HasSubstr("slowest stage: read")));
}

/// Three of four cache look-ups are hits.
class FarAway : public data::Dataset {
 public:
  explicit FarAway(std::shared_ptr<const Dataset> samples) : samples_(std::move(samples)) {}
  std::int64_t size() const override { return samples_->size(); }
  data::Example get(std::int64_t index) const override {
    data::count_read(1000);
    for (int look = 0; look < 4; ++look) data::count_cache(look > 0);
    return samples_->get(index);
  }

 private:
  std::shared_ptr<const Dataset> samples_;
};

TEST_F(Loading, MetricsShowReadSourcesAndPrefetchDepth) {
  RunConfig config = this->config("far");
  config.data.workers = 1;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    data::DataSource data = data::open_data(config.data);
    data.train = std::make_shared<FarAway>(data::indexed(data.train));
    run_training(config, context, {.data = data});
  });
  const std::string metrics = file("far", "metrics.jsonl");
  const auto steps = num_lines(metrics, R"("event":"step")");
  EXPECT_GE(steps, 2U);
  EXPECT_GE(num_lines(metrics, R"("data_ahead":)"), steps - 1) << "the first step finds none";
  EXPECT_GE(num_lines(metrics, R"("data_cache_hits":0.75,)"), 1U);
  EXPECT_GE(num_lines(metrics, R"("data_bytes_per_s":)"), 1U) << "while an epoch is still to be read";
  EXPECT_EQ(num_lines(metrics, R"("data_cache_hits":)"), num_lines(metrics, R"("data_cache_hits":0.75,)"));
}

TEST_F(Loading, SlowRankTakesFewerSamples) {
  RunConfig config = this->config("dealt");
  config.train = {.epochs = 30, .max_steps = 70, .global_batch = 48, .accumulation = 2};
  config.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
  config.data.workers = 1;
  config.data.prefetch = 2;
  config.checkpoint.every_steps = 0;
  RunConfig alone = config;
  alone.run.name = "alone";
  alone.train.accumulation = 4;
  const RunResult serial = run(1, alone);
  config.data.balance = "dynamic";
  RunResult result;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    data::DataSource data = data::open_data(config.data);
    if (context.rank() == 1) data.train = std::make_shared<SlowSamples>(data::indexed(data.train));
    const RunResult mine = run_training(config, context, {.data = data});
    if (context.is_main()) result = mine;
  });
  const std::vector<std::int64_t>& samples = result.loading.samples;
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0] + samples[1], 48);
  EXPECT_LT(samples[1], 24) << "120 ms for its half of a batch, and the other rank needs a few";
  EXPECT_NEAR(result.train_loss, serial.train_loss, 1e-5 * serial.train_loss) << "the same mean gradients";
  EXPECT_NEAR(result.evaluation->loss, serial.evaluation->loss, 1e-5 * serial.evaluation->loss);
  EXPECT_THAT(file("dealt", "summary.json"), HasSubstr(text(R"("loading_samples_rank_1": )", samples[1])));
  EXPECT_THAT(file("dealt", "report.html"), HasSubstr(text("takes ", samples[1], " samples of a batch")));
}

/// The use of four ranks: replicas of several ranks, or sharded replicas.
struct DealtTo {
  const char* name;
  void (*change)(RunConfig&);
  int slow_rank;
};

class DealtLoading : public SmallRuns, public testing::WithParamInterface<DealtTo> {};

TEST_P(DealtLoading, AnewIsTheModelOfOneRank) {
  RunConfig config = this->config("dealt");
  config.train = {.epochs = 30, .max_steps = 60, .global_batch = 50, .accumulation = 1};
  config.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
  config.data.workers = 1;
  config.data.prefetch = 2;
  config.model.hidden = {8, 8};
  config.checkpoint.every_steps = 0;
  RunConfig alone = config;
  alone.run.name = "alone";
  const RunResult serial = run(1, alone);
  GetParam().change(config);
  config.data.balance = "dynamic";
  RunResult result;
  comm::run_ranks_as_threads(4, [&](comm::Context& context) {
    data::DataSource data = data::open_data(config.data);
    if (context.rank() == GetParam().slow_rank)
      data.train = std::make_shared<SlowSamples>(data::indexed(data.train));
    const RunResult mine = run_training(config, context, {.data = data});
    if (context.is_main()) result = mine;
  });
  ASSERT_EQ(result.loading.samples.size(), 4U);
  const auto [fewest, most] = std::ranges::minmax(result.loading.samples);
  EXPECT_LT(fewest, most - 1) << "of the slow one";
  EXPECT_EQ(result.loading.samples[static_cast<std::size_t>(GetParam().slow_rank)], fewest);
  EXPECT_NEAR(result.train_loss, serial.train_loss, 1e-4 * serial.train_loss);
  EXPECT_NEAR(result.evaluation->loss, serial.evaluation->loss, 1e-4 * serial.evaluation->loss);
}

const DealtTo kDealtTo[] = {
    {"Replicas", [](RunConfig&) {}, 2},
    {"Shards", [](RunConfig& c) { c.parallel.zero = 3; }, 3},
    {"Stages",
     [](RunConfig& c) {
       c.parallel.pipeline = 2;
       c.parallel.microbatches = 3;
     },
     1},
    {"PartsOfLayers", [](RunConfig& c) { c.parallel.tensor = 2; }, 3},
};

INSTANTIATE_TEST_SUITE_P(Ways, DealtLoading, testing::ValuesIn(kDealtTo),
                         [](const auto& info) { return std::string(info.param.name); });

/// The sum of 8 random numbers of `key`.
void draw(Random key, const at::Tensor& numbers, const at::Tensor& sum) {
  float total = 0;
  for (int i = 0; i < 8; ++i) total += numbers.data_ptr<float>()[i] = key.uniform();
  sum.data_ptr<float>()[0] = total;
}

struct Sums : data::Dataset {
  std::int64_t size() const override { return 40; }
  data::Example get(std::int64_t index) const override {
    const data::Example one = {at::empty({8}), at::empty({1})};
    draw(Random(3, index), one.input, one.target);
    return one;
  }
};

data::DataSource sums(bool keyed) {
  data::DataSource source = {
      .name = "sums", .train = nullptr, .test = std::make_shared<Sums>(), .input_shape = {8}};
  source.train = std::make_shared<data::ProducedSamples>(
      data::ProducedOptions{.like = {at::zeros({8}), at::zeros({1})},
                            .samples_per_epoch = 100,
                            .keyed = keyed,
                            .threads = 2,
                            .produce = [](data::Producer& producer) {
                              while (producer.fill([](data::Row& row) {
                                draw(Random(7, row.epoch, row.place), row.sample.input, row.sample.target);
                              })) {
                              }
                            }});
  return source;
}

class ProducedTraining : public SmallRuns {
 protected:
  RunConfig config(const std::string& name) const {
    RunConfig config = SmallRuns::config(name);
    config.objective.name = "mean_squared_error";
    config.train.global_batch = 30;
    config.train.epochs = 3;
    config.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
    return config;
  }
  double loss(int ranks, const RunConfig& config, RunStart start = RunStart::kFresh) {
    data_ = sums(/*keyed=*/true);
    const RunResult result = run(ranks, config, start);
    EXPECT_EQ(result.steps, config.train.max_steps);
    return result.evaluation->loss;
  }
};

TEST_F(ProducedTraining, KeyedSamplesMatchOneRank) {
  const double one = loss(1, config("one"));
  EXPECT_LT(one, 0.6) << "it learns: unlearnt it is 16";
  EXPECT_NEAR(loss(3, config("three")), one, 1e-4 * one);
  RunConfig cut = config("cut");
  cut.parallel.pipeline = 2;
  cut.parallel.microbatches = 2;
  EXPECT_NEAR(loss(2, cut), one, 1e-4 * one);
}

TEST_F(ProducedTraining, KeyedSamplesContinueWithSameBits) {
  const double whole = loss(2, config("whole"));
  RunConfig half = config("half");
  half.train.max_steps = 6;
  loss(2, half);
  half.train.max_steps = 12;
  EXPECT_EQ(loss(2, half, RunStart::kResume), whole);
}

TEST_F(ProducedTraining, OfKeyedSamplesIsVerified) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Comparison found = verify(config("verified"), context, sums(/*keyed=*/true), 4);
    EXPECT_TRUE(!context.is_main() || found.equal());
  });
}

TEST_F(ProducedTraining, RejectsOtherSamplesWhereRanksMustAgree) {
  const auto refused = [&](const RunConfig& config) {
    data_ = sums(/*keyed=*/false);
    EXPECT_THAT(
        [&] { run(2, config); },
        ThrowsMessage<InvalidArgument>(HasSubstr("the samples of sums are made as they are asked for")));
  };
  RunConfig cut = config("cut");
  cut.parallel.pipeline = 2;
  refused(cut);
  RunConfig wide = config("wide");
  wide.parallel.tensor = 2;
  refused(wide);
  data_ = sums(/*keyed=*/false);
  EXPECT_EQ(run(2, config("replicas")).status, "completed");
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    EXPECT_THAT([&] { verify(config("verified"), context, sums(/*keyed=*/false), 4); },
                ThrowsMessage<InvalidArgument>(HasSubstr("there is no serial run on the same ones")));
  });
}

}  // namespace
}  // namespace trireme::train
