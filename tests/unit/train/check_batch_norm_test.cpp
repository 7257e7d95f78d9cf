// A batch norm that would get one value per channel is detected before the first step. Other norms are
// accepted.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "trireme/base/error.h"
#include "trireme/model/deferred.h"
#include "trireme/model/untouched.h"
#include "trireme/train/step/internal/check.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
namespace nn = torch::nn;

class CountedImages : public data::Dataset {
 public:
  explicit CountedImages(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  data::Example get(std::int64_t index) const override {
    return {at::full({1, 4, 4}, static_cast<double>(index)).sin(), at::full({}, index % 3, at::kLong)};
  }

 private:
  const std::int64_t size_;
};

data::DataSource counted_images(std::int64_t size) {
  return {.name = "counted",
          .train = std::make_shared<CountedImages>(size),
          .test = std::make_shared<CountedImages>(4),
          .input_shape = {1, 4, 4},
          .num_classes = 3};
}

/// Input of one vector per sample. A micro-batch of one sample has one value per channel.
struct NormOfVectors : model::Model {
  NormOfVectors() {
    register_module("norm", norm);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& input) override {
    return last->forward(norm->forward(input.flatten(1)));
  }
  nn::BatchNorm1d norm{16};
  nn::Linear last{16, 3};
};

/// Input of images: 16 values per channel and sample.
struct NormOfImages : model::Model {
  NormOfImages() {
    register_module("convolution", convolution);
    register_module("norm", norm);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& input) override {
    return last->forward(norm->forward(convolution->forward(input)).mean({2, 3}));
  }
  nn::Conv2d convolution{nn::Conv2dOptions(1, 4, 3).padding(1)};
  nn::BatchNorm2d norm{4};
  nn::Linear last{4, 3};
};

RunConfig in_batches_of(std::int64_t size) {
  RunConfig config;
  config.train.global_batch = size;
  config.train.epochs = 2;
  return config;
}

void check_model(std::shared_ptr<model::Model> model, const RunConfig& config, std::int64_t samples,
                 int ranks = 1) {
  checked_model(std::move(model), resolve_plan(config, ranks), counted_images(samples));
}

template <class Model = NormOfVectors>
std::function<void()> checking(const RunConfig& config, std::int64_t samples, int ranks = 1) {
  return [=] { check_model(std::make_shared<Model>(), config, samples, ranks); };
}

TEST(SingleSamples, AreNamedByBatchBeforeFirstStep) {
  EXPECT_THAT(checking(in_batches_of(4), 9),
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("Expected more than 1 value per channel"),
                                                   HasSubstr("step 3, number 3 of epoch 1, has 1 of 9"),
                                                   HasSubstr("train.global_batch = 4"),
                                                   HasSubstr("data.drop_last = true"))));
}

TEST(SingleSamples, CountPerRankAndMicroBatch) {
  EXPECT_THAT(checking(in_batches_of(4), 8, /*ranks=*/4),
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("step 1,"), HasSubstr("4 micro-batches"), Not(HasSubstr("drop_last")))));
  RunConfig config = in_batches_of(4);
  config.train.accumulation = 2;
  EXPECT_NO_THROW(checking(config, 8)());
  // 10 = 4 + 4 + 2. In the last batch each of the two has one sample.
  EXPECT_THAT(checking(config, 10), ThrowsMessage<InvalidArgument>(HasSubstr("step 3,")));
  EXPECT_THAT(checking(in_batches_of(4), 11, /*ranks=*/2),
              ThrowsMessage<InvalidArgument>(HasSubstr("has 3 of 11")));
}

TEST(SingleSamples, AreFoundInLaterRampPhase) {
  RunConfig config = in_batches_of(8);
  config.train.batch_ramp_sizes = {4};
  config.train.batch_ramp_steps = {2};
  EXPECT_NO_THROW(checking(config, 16)());
  // 4 + 4 + 8 + 1 = 17 in the first epoch, 8 + 8 + 1 in the second.
  EXPECT_THAT(checking(config, 17), ThrowsMessage<InvalidArgument>(HasSubstr("step 4, number 4 of epoch 1")));
  // 4 + 4 + 8 + 2 = 18 in the first epoch, and 8 + 8 + 2 in others.
  EXPECT_NO_THROW(checking(config, 18)());
  // 4 + 4 + 8 + 5 = 21 in the first epoch. 25 are 4 + 4 + 8 + 8 + 1 and 8 + 8 + 8 + 1.
  EXPECT_NO_THROW(checking(config, 21)());
  EXPECT_THAT(checking(config, 25), ThrowsMessage<InvalidArgument>(HasSubstr("step 5, number 5 of epoch 1")));
}

TEST(SingleSamples, AreNoMatterWhereNoneComes) {
  EXPECT_NO_THROW(checking(in_batches_of(4), 8)());
  RunConfig dropped = in_batches_of(4);
  dropped.data.drop_last = true;
  EXPECT_NO_THROW(checking(dropped, 9)());
  RunConfig ends_before = in_batches_of(4);
  ends_before.train.max_steps = 2;
  EXPECT_NO_THROW(checking(ends_before, 9)());
}

TEST(SingleSamples, AreEnoughForANormOfImages) {
  EXPECT_NO_THROW(checking<NormOfImages>(in_batches_of(4), 9)());
  EXPECT_NO_THROW(checking<NormOfImages>(in_batches_of(4), 8, /*ranks=*/4)());
}

TEST(SingleSamples, SufficeForFrozenNorm) {
  const auto model = std::make_shared<NormOfVectors>();
  model->norm->eval();
  EXPECT_NO_THROW(check_model(model, in_batches_of(4), 9));
}

TEST(SingleSamples, OfADeferredModelAreFound) {
  EXPECT_THAT(
      [] { check_model(deferred([] { return std::make_shared<NormOfVectors>(); }), in_batches_of(4), 9); },
      ThrowsMessage<InvalidArgument>(HasSubstr("drop_last")));
  EXPECT_NO_THROW(
      check_model(deferred([] { return std::make_shared<NormOfImages>(); }), in_batches_of(4), 9));
}

TEST(SingleSamples, CheckKeepsStatisticsAndRandomNumbers) {
  const auto model = std::make_shared<NormOfImages>();
  const std::vector<at::Tensor> random = model::random_state();
  check_model(model, in_batches_of(4), 9);
  EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 0);
  EXPECT_TRUE(model->norm->running_mean.equal(at::zeros({4})));
  EXPECT_TRUE(model::random_state().front().equal(random.front()));
}

TEST(SingleSamples, AreAcceptedForImageNorm) {
  const data::DataSource data = counted_images(9);
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const auto model = std::make_shared<NormOfImages>();
    Trainer trainer(in_batches_of(4), context, data, model);
    while (!trainer.finished()) trainer.step();
    EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 6);
  });
}

}  // namespace
}  // namespace trireme::train
