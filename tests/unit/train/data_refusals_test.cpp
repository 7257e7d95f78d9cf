// Data that the loss or the model cannot use is rejected before the first step, with the found and the
// expected form. Data that changes its form later is rejected at that sample, and never by an error of
// libtorch.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>

#include "trireme/base/error.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A user-defined data set of two functions of the index.
class OwnData : public data::Dataset {
 public:
  using Of = std::function<at::Tensor(std::int64_t index)>;
  OwnData(Of input, Of target, std::int64_t size = 8)
      : input_(std::move(input)), target_(std::move(target)), size_(size) {}
  std::int64_t size() const override { return size_; }
  data::Example get(std::int64_t index) const override { return {input_(index), target_(index)}; }

 private:
  Of input_, target_;
  std::int64_t size_;
};

at::Tensor image(std::int64_t) { return at::ones({1, 4, 4}); }
at::Tensor label(std::int64_t index) { return at::full({}, index % 3, at::kLong); }

data::DataSource source_of(std::shared_ptr<data::Dataset> train,
                           std::shared_ptr<data::Dataset> test = nullptr) {
  if (!test) test = std::make_shared<OwnData>(image, label);
  return {.name = "own",
          .train = std::move(train),
          .test = std::move(test),
          .input_shape = {1, 4, 4},
          .num_classes = 3};
}

RunConfig small_config() {
  RunConfig config;
  config.model.hidden = {4};
  config.train.global_batch = 4;
  config.train.epochs = 2;
  return config;
}

struct Case {
  const char* name;
  data::DataSource (*data)();
  const char* found;
  const char* expected;
};

std::ostream& operator<<(std::ostream& out, const Case& row) { return out << row.name; }

data::DataSource with_targets(OwnData::Of target) {
  return source_of(std::make_shared<OwnData>(image, std::move(target)));
}

const Case kBefore[] = {
    {"FloatTargets", [] { return with_targets([](std::int64_t) { return at::full({}, 1.0, at::kFloat); }); },
     "Float of shape []", "Long of shape []"},
    {"IntTargets", [] { return with_targets([](std::int64_t) { return at::full({}, 1, at::kInt); }); },
     "Int of shape []", "Long of shape []"},
    {"OneHotTargets", [] { return with_targets([](std::int64_t) { return at::ones({3}, at::kFloat); }); },
     "Float of shape [3]", "Long of shape []"},
    {"SeveralTargets", [] { return with_targets([](std::int64_t) { return at::ones({2}, at::kLong); }); },
     "Long of shape [2]", "1 target"},
    {"FloatTargetsOfTheTestData",
     [] {
       return source_of(
           std::make_shared<OwnData>(image, label),
           std::make_shared<OwnData>(image, [](std::int64_t) { return at::full({}, 1.0, at::kFloat); }));
     },
     "second split", "Long of shape []"},
    {"ImagesOfAnotherSize",
     [] {
       return source_of(std::make_shared<OwnData>([](std::int64_t) { return at::ones({1, 5, 4}); }, label));
     },
     "[1, 5, 4]", "[1, 4, 4]"},
    {"TestImagesOfAnotherSize",
     [] {
       return source_of(std::make_shared<OwnData>(image, label), std::make_shared<OwnData>(
                                                                     [](std::int64_t) {
                                                                       return at::ones({1, 4, 5});
                                                                     },
                                                                     label));
     },
     "[1, 4, 5]", "[1, 4, 4]"},
    {"NoTestData",
     [] {
       return source_of(std::make_shared<OwnData>(image, label),
                        std::make_shared<OwnData>(image, label, /*size=*/0));
     },
     "no samples", "second split"},
    {"InputsThatTheModelCannotTake",
     [] {
       return source_of(std::make_shared<OwnData>(
           [](std::int64_t) {
             return at::ones({1, 4, 4}, at::kInt);
           },
           label));
     },
     "model.name = \"mlp\" cannot take data.name = \"own\"", ""},
};

class DataRejected : public testing::TestWithParam<Case> {};

TEST_P(DataRejected, FailsBeforeFirstStepOnAnyRanks) {
  for (const int ranks : {1, 2}) {
    const data::DataSource data = GetParam().data();
    EXPECT_THAT(
        [&] {
          comm::run_ranks_as_threads(
              ranks, [&](comm::Context& context) { const Trainer trainer(small_config(), context, data); });
        },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(GetParam().found), HasSubstr(GetParam().expected))));
  }
}

INSTANTIATE_TEST_SUITE_P(Table, DataRejected, testing::ValuesIn(kBefore),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(DataRejectedByValue, InvalidClassIsFoundBeforeFirstStep) {
  const data::DataSource data = with_targets([](std::int64_t) { return at::full({}, 3, at::kLong); });
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    EXPECT_THAT([&] { const Trainer trainer(small_config(), context, data); },
                ThrowsMessage<DataError>(AllOf(HasSubstr("is of class 3"), HasSubstr("knows 0 to 2"))));
  });
}

TEST(DataRejectedByValue, AnEvaluationWithoutTestDataSaysSo) {
  data::DataSource data = source_of(std::make_shared<OwnData>(image, label));
  data.test = nullptr;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Trainer trainer(small_config(), context, data);
    trainer.step();
    EXPECT_THAT([&] { trainer.evaluate(); },
                ThrowsMessage<InvalidArgument>(HasSubstr("no second split to evaluate on")));
  });
}

// The first sample, which is checked before the first step, is valid.
TEST(DataOnTheWay, TargetsTurnedFloatAreNamedBySample) {
  const data::DataSource data = with_targets(
      [](std::int64_t index) { return index == 0 ? label(index) : at::full({}, 1.0, at::kFloat); });
  RunConfig config = small_config();
  config.train.global_batch = 1;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Trainer trainer(config, context, data);
    EXPECT_THAT(
        [&] {
          while (!trainer.finished()) trainer.step();
        },
        ThrowsMessage<DataError>(AllOf(HasSubstr("sample "), HasSubstr("Float"), HasSubstr("Long"))));
  });
}

/// Batches that are one target short after the first sample.
class ShortBatches : public OwnData {
 public:
  ShortBatches() : OwnData(image, label) {}
  data::Example get_batch(std::span<const std::int64_t> indices) const override {
    data::Example batch = OwnData::get_batch(indices);
    if (indices.size() > 1) batch.target = batch.target->slice(0, 1);
    return batch;
  }
};

TEST(DataOnTheWay, MissingTargetsAreRejectedWithBothNumbers) {
  const data::DataSource data = source_of(std::make_shared<ShortBatches>());
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    Trainer trainer(small_config(), context, data);
    EXPECT_THAT([&] { trainer.step(); },
                ThrowsMessage<DataError>(AllOf(HasSubstr("3 targets"), HasSubstr("4 samples"))));
  });
}

/// An embedding of the classes of tokens with sparse gradients.
class SparseModel : public model::Model {
 public:
  SparseModel() {
    table_ = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 4).sparse(true)));
    last_ = register_module("last", torch::nn::Linear(4, 3));
  }
  at::Tensor forward(const at::Tensor& input) override {
    return last_->forward(table_->forward(input.flatten(1).to(at::kLong)).mean(1));
  }

 private:
  torch::nn::Embedding table_ = nullptr;
  torch::nn::Linear last_ = nullptr;
};

TEST(SparseEmbeddings, AreRejectedBeforeFirstStep) {
  const data::DataSource data = source_of(std::make_shared<OwnData>(image, label));
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(
        [&] {
          comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
            Trainer trainer(small_config(), context, data, std::make_shared<SparseModel>());
            trainer.step();
          });
        },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("table.weight"), HasSubstr("sparse"))))
        << ranks << " ranks";
  }
}

TEST(TwoTrainers, ConcurrentPipelinesShareOneContext) {
  const data::DataSource data = source_of(std::make_shared<OwnData>(image, label));
  RunConfig config = small_config();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 2;
  comm::run_ranks_as_threads(4, [&](comm::Context& context) {
    Trainer first(config, context, data), second(config, context, data);
    first.step();
    second.step();
    first.step();
    EXPECT_EQ(first.steps_done(), 2);
    EXPECT_EQ(second.last_report()->step, 1);
  });
}

TEST(TwoTrainers, WithAsynchronousPipelinesLiveInOneContext) {
  const data::DataSource data = source_of(std::make_shared<OwnData>(image, label));
  RunConfig config = small_config();
  config.parallel.pipeline = 2;
  config.parallel.schedule = "pipedream";
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Trainer first(config, context, data), second(config, context, data);
    for (Trainer* trainer : {&first, &second}) {
      while (!trainer->finished() || !trainer->drained()) trainer->step();
      EXPECT_EQ(trainer->steps_done(), 4);
    }
  });
}

}  // namespace
}  // namespace trireme::train
