#include "trireme/data/collate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/data/decorators.h"
#include "trireme/data/loader.h"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Sample i has i + 1 tokens, an image of (2, i + 1) and the label i. In later epochs tokens are larger.
class Sentences : public Dataset {
 public:
  std::int64_t size() const override { return 6; }
  Example get(std::int64_t index) const override {
    return {{{"tokens", at::arange(1, index + 2) + offset_},
             {"picture", at::full({2, index + 1}, static_cast<float>(index))}},
            {{"labels", at::arange(index + 1)}, {"class", at::scalar_tensor(index, at::kLong)}}};
  }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    auto view = std::make_shared<Sentences>(*this);
    view->offset_ = static_cast<std::int64_t>(100 * epoch);
    return view;
  }

 private:
  std::int64_t offset_ = 0;
};

const std::vector<Padding> kPaddings = {{.field = "tokens", .mask = "mask"},
                                        {.field = "picture", .value = -1},
                                        {.field = "labels", .value = -100}};

std::shared_ptr<const Dataset> sentences(std::vector<Padding> paddings = kPaddings) {
  return padded(std::make_shared<Sentences>(), std::move(paddings));
}

Example batch_of(const Dataset& dataset, const std::vector<std::int64_t>& indices) {
  return dataset.get_batch(indices);
}

std::vector<std::int64_t> longs(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kLong).contiguous();
  return {values.const_data_ptr<std::int64_t>(), values.const_data_ptr<std::int64_t>() + values.numel()};
}
using Longs = std::vector<std::int64_t>;

TEST(Padded, ExtendsFieldsToLargestOfBatch) {
  const Example batch = batch_of(*sentences(), {1, 2, 0});
  EXPECT_EQ(batch::to_text(batch.input),
            "3 fields: 'tokens', Long of shape [3, 3]; 'mask', Bool of shape [3, 3]; 'picture', Float of "
            "shape [3, 2, 3]");
  EXPECT_EQ(longs(batch.input["tokens"]), (Longs{1, 2, 0, 1, 2, 3, 1, 0, 0}));
  EXPECT_EQ(longs(batch.input["mask"]), (Longs{1, 1, 0, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(longs(batch.input["picture"][0]), (Longs{1, 1, -1, 1, 1, -1}));
  EXPECT_EQ(longs(batch.target["labels"]), (Longs{0, 1, -100, 0, 1, 2, 0, -100, -100}));
  EXPECT_EQ(longs(batch.target["class"]), (Longs{1, 2, 0}));
}

TEST(Padded, RoundsUpOrTakesOneLength) {
  EXPECT_EQ(batch_of(*sentences({{.field = "tokens", .multiple_of = 4}, kPaddings[1], kPaddings[2]}), {4, 0})
                .input["tokens"]
                .size(1),
            8);
  const std::vector<Padding> to_five = {{.field = "tokens", .length = 5}, kPaddings[1], kPaddings[2]};
  EXPECT_EQ(batch_of(*sentences(to_five), {0, 1}).input["tokens"].size(1), 5);
  EXPECT_THAT(
      [&] {
        batch_of(*sentences(to_five), {0, 5});
      },
      ThrowsMessage<DataError>(
          AllOf(HasSubstr("field 'tokens' of sample 5 is 6 long"), HasSubstr("padded to 5"))));
}

TEST(Padded, SizesVaryUnlessAllLengthsAreGiven) {
  EXPECT_TRUE(sentences()->sizes_vary());
  const auto rows = collated(
      std::make_shared<Sentences>(),
      [](std::span<const Example> samples) {
        return Example{{{"tokens", samples[0].input["tokens"].unsqueeze(0)}}, {}};
      },
      BatchSizes::kSame);
  EXPECT_FALSE(rows->sizes_vary());
  EXPECT_FALSE(padded(rows, {{.field = "tokens", .length = 6}})->sizes_vary());
  EXPECT_TRUE(sentences({{.field = "picture", .length = 6}})->sizes_vary()) << "its second dim";
  EXPECT_TRUE(SubsetDataset(sentences(), {1, 2}).sizes_vary());
}

TEST(Padded, AnEmptyBatchHasAllFields) {
  const Example batch = batch_of(*sentences(), {});
  EXPECT_TRUE(batch::same_names(batch.input, batch_of(*sentences(), {1}).input));
  EXPECT_EQ(batch.rows(), 0);
  EXPECT_EQ(batch.input["picture"].dim(), 3);
}

TEST(Padded, IsReadByLoaderInEveryEpoch) {
  Loader loader(sentences(), {.global_batch = 6, .num_microbatches = 2, .workers = 2});
  const StepBatch first = loader.next(), second = loader.next();
  EXPECT_EQ(first.microbatches.size(), 2U);
  std::int64_t tokens = 0;
  for (const Example& part : first.microbatches) tokens += part.input["mask"].sum().item<std::int64_t>();
  EXPECT_EQ(tokens, 1 + 2 + 3 + 4 + 5 + 6);
  EXPECT_GE(second.microbatches[0].input["tokens"].max().item<std::int64_t>(), 101);
}

TEST(Padded, RejectsFieldsWithoutPadding) {
  EXPECT_THAT([] { sentences({{.field = "token"}}); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("no field 'token' to pad"), HasSubstr("'tokens', Long of shape [1]"))));
  EXPECT_THAT([] { sentences({}); }, ThrowsMessage<InvalidArgument>(HasSubstr("nothing to pad")));
  EXPECT_THAT(
      [] {
        batch_of(*sentences({{.field = "tokens"}}), {0, 1});
      },
      ThrowsMessage<DataError>(
          AllOf(HasSubstr("field 'picture' of sample 0"), HasSubstr("give the field a data::Padding"))));
  EXPECT_THAT([] { batch_of(Sentences(), {0, 1}); }, ThrowsMessage<DataError>(HasSubstr("data/collate.h")));
}

/// One unnamed tensor. Sample 3 has another number of dimensions or other fields.
class Odd : public Dataset {
 public:
  explicit Odd(bool fields) : fields_(fields) {}
  std::int64_t size() const override { return 4; }
  Example get(std::int64_t index) const override {
    if (index < 3) return {at::zeros({index + 1}), {}};
    if (fields_) return {{{"a", at::zeros({1})}}, {}};
    return {at::zeros({1, 1}), {}};
  }

 private:
  bool fields_;
};

TEST(Padded, UnnamedTensorIsCalledByItsSide) {
  const auto odd = padded(std::make_shared<Odd>(false), {{.field = "input", .value = 7}});
  const Example batch = batch_of(*odd, {0, 2});
  EXPECT_EQ(longs(batch.input), (Longs{0, 7, 7, 0, 0, 0}));
  EXPECT_TRUE(batch.target.empty());
  EXPECT_THAT(
      [&] {
        batch_of(*odd, {1, 3});
      },
      ThrowsMessage<DataError>(AllOf(HasSubstr("field input of sample 3 is Float of shape [1, 1]"),
                                     HasSubstr("that of sample 1 is Float of shape [2]"))));
  EXPECT_THAT(
      [] {
        batch_of(*padded(std::make_shared<Odd>(true), {{.field = "input"}}), {1, 3});
      },
      ThrowsMessage<DataError>(HasSubstr("sample 3 has 'a', Float")));
}

TEST(Collated, IsTheResultOfTheFunction) {
  const auto sums = collated(std::make_shared<Sentences>(), [](std::span<const Example> samples) {
    std::vector<at::Tensor> each;
    for (const Example& sample : samples) each.push_back(sample.input["tokens"].sum());
    return Example{at::stack(each), {}};
  });
  EXPECT_EQ(longs(batch_of(*sums, {2, 0}).input), (Longs{6, 1}));
  EXPECT_EQ(batch_of(*sums, {}).rows(), 0);
  EXPECT_EQ(longs(sums->in_epoch(1)->get_batch(Longs{0}).input), (Longs{101}));
  EXPECT_TRUE(sums->sizes_vary());
}

TEST(Collated, RejectsBatchWithAnotherNumberOfRows) {
  const auto flat = collated(std::make_shared<Sentences>(), [](std::span<const Example>) {
    return Example{at::zeros({5}), {}};
  });
  EXPECT_THAT(
      [&] {
        batch_of(*flat, {3, 1});
      },
      ThrowsMessage<DataError>(AllOf(HasSubstr("of 2 samples, the first of them number 3"),
                                     HasSubstr("Float of shape [5]"), HasSubstr("first dim of 2"))));
}

TEST(NamedSamples, AreStackedFieldByField) {
  class Pairs : public Dataset {
   public:
    std::int64_t size() const override { return 3; }
    Example get(std::int64_t index) const override {
      return {{{"a", at::full({2}, index)}, {"b", at::full({}, static_cast<float>(index))}}, {}};
    }
  };
  const Example batch = batch_of(Pairs(), {2, 0});
  EXPECT_EQ(longs(batch.input["a"]), (Longs{2, 2, 0, 0}));
  EXPECT_EQ(longs(batch.input["b"]), (Longs{2, 0}));
  EXPECT_EQ(batch_of(Pairs(), {}).input["a"].sizes(), (Longs{0, 2}));
}

TEST(NamedSamples, InvalidNumberIsNamedWithItsField) {
  class Broken : public Dataset {
   public:
    std::int64_t size() const override { return 3; }
    Example get(std::int64_t index) const override {
      return {{{"a", at::zeros({2})}, {"b", at::full({2}, index == 1 ? INFINITY : 0)}}, {}};
    }
  };
  const Longs indices = {0, 1};
  EXPECT_THAT(
      [&] { check_finite(Broken().get_batch(indices), indices); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("sample 1"), HasSubstr("holds inf as its number 0 of 'b'"))));
}

}  // namespace
}  // namespace trireme::data
