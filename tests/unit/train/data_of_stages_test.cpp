// The data that ranks of a pipeline read.
#include <gtest/gtest.h>

#include <atomic>
#include <utility>
#include <vector>

#include "trireme/data/synthetic_dataset.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

/// 70 small images in each split.
data::DataSource small_data() {
  const auto split = [&](std::uint64_t number) {
    return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
        .num_samples = 70, .num_classes = 4, .height = 6, .width = 6, .seed = 3, .split = number});
  };
  return {.name = "small", .train = split(0), .test = split(1), .input_shape = {1, 6, 6}, .num_classes = 4};
}

RunConfig three_stages() {
  RunConfig config;
  config.model.hidden = {12, 12};
  config.train = {.epochs = 1, .global_batch = 32};
  config.optimizer = {.name = "sgd", .lr = 0.1, .momentum = 0.9};
  config.parallel.pipeline = 3;
  config.parallel.schedule = "1f1b";
  config.parallel.microbatches = 4;
  config.parallel.partition = "parameters";
  config.data.workers = 1;
  config.data.prefetch = 1;
  return config;
}

/// The same samples. It counts the inputs that are read.
struct CountedSamples : data::Dataset {
  explicit CountedSamples(std::shared_ptr<const data::Dataset> of) : samples(std::move(of)) {}
  std::int64_t size() const override { return samples->size(); }
  data::Example get(std::int64_t index) const override {
    ++read;
    return samples->get(index);
  }
  Fields get_targets(std::span<const std::int64_t> indices) const override {
    return samples->get_targets(indices);
  }
  std::shared_ptr<const data::Dataset> samples;
  mutable std::atomic<std::int64_t> read = 0;
};

/// Number of inputs that ranks of a three-stage pipeline read of the training and the test data. They train
/// an epoch of 70 samples and evaluate as many. Three of each are checked before.
std::vector<std::pair<std::int64_t, std::int64_t>> inputs_read(const RunConfig& config) {
  std::vector<std::pair<std::int64_t, std::int64_t>> read(3);
  std::vector<double> losses(3);
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    data::DataSource data = small_data();
    const auto train = std::make_shared<CountedSamples>(data::indexed(data.train)),
               test = std::make_shared<CountedSamples>(data.test);
    data.train = train;
    data.test = test;
    Trainer trainer(config, context, data);
    train->read = test->read = 0;
    while (!trainer.finished()) trainer.step();
    const auto rank = static_cast<std::size_t>(context.rank());
    losses[rank] = trainer.evaluate().loss;
    trainer.last_report();
    read[rank] = {train->read, test->read};
  });
  EXPECT_EQ(losses[0], losses[2]);
  return read;
}

TEST(DataOfStages, StageReadsOnlyItsInputs) {
  const auto read = inputs_read(three_stages());
  EXPECT_GE(read[0].first, 70);
  EXPECT_GE(read[0].second, 70);
  for (const std::size_t behind : {1, 2}) {
    EXPECT_LE(read[behind].first, 1) << "sample 0, for its shape";
    EXPECT_LE(read[behind].second, 1);
  }
}

TEST(DataOfStages, AllStagesReadTargetsCountedByValue) {
  RunConfig config = three_stages();
  config.objective.ignored_classes = {1};
  const auto read = inputs_read(config);
  for (const std::size_t rank : {0, 1, 2}) EXPECT_GE(read[rank].first, 70);
}

}  // namespace
}  // namespace trireme::train
