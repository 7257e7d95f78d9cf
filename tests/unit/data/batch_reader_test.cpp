#include "trireme/data/batch_reader.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/image_files.h"
#include "tests/unit/data/packed_samples.h"
#include "tests/unit/data/tar_files.h"
#include "trireme/data/collate.h"
#include "trireme/data/decorators.h"
#include "trireme/data/image_folder.h"
#include "trireme/data/internal/record_layout.h"
#include "trireme/data/kept_samples.h"
#include "trireme/data/loader.h"
#include "trireme/data/mixture.h"
#include "trireme/data/tar_dataset.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {

using testing::ElementsAre;

constexpr Needed kInputs = {.inputs = true, .targets = false}, kTargets = {.inputs = false, .targets = true},
                 kNeither = {.inputs = false, .targets = false};

/// Sample i is three times the number i and has class 10 i. Reads are counted.
class Counted : public Dataset {
 public:
  explicit Counted(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override {
    ++inputs_read;
    return {at::full({3}, static_cast<double>(index)), at::scalar_tensor(10 * index, at::kLong)};
  }
  Fields get_targets(std::span<const std::int64_t> indices) const override {
    at::Tensor targets = at::full({static_cast<std::int64_t>(indices.size())}, 0, at::kLong);
    for (std::size_t i = 0; i < indices.size(); ++i)
      targets[static_cast<std::int64_t>(i)].fill_(10 * indices[i]);
    return targets;
  }

  mutable std::atomic<int> inputs_read = 0;

 private:
  std::int64_t size_;
};

std::vector<std::int64_t> numbers_in(const at::Tensor& tensor) {
  const at::Tensor numbers = tensor.contiguous();
  return {numbers.const_data_ptr<std::int64_t>(), numbers.const_data_ptr<std::int64_t>() + numbers.numel()};
}

TEST(BatchReader, UnneededSideHasShapeAndOneRow) {
  const Counted data(1000);
  const std::vector<std::int64_t> indices = {7, 3, 900};
  const BatchReader none(kNeither);
  for (int i = 0; i < 5; ++i) {
    const Example batch = none.read(data, indices);
    EXPECT_EQ(batch.input->sizes(), (std::vector<std::int64_t>{3, 3}));
    EXPECT_EQ(batch.target->sizes(), (std::vector<std::int64_t>{3}));
    EXPECT_EQ(batch.target->scalar_type(), at::kLong);
    EXPECT_EQ(batch.input->storage().nbytes(), 3 * sizeof(float));
  }
  EXPECT_EQ(data.inputs_read, 1) << "sample 0";
  EXPECT_EQ(none.read(data, {}).input->sizes(), (std::vector<std::int64_t>{0, 3})) << "a batch without rows";
  EXPECT_EQ(none.read(data, {}).rows(), 0);
}

TEST(BatchReader, NeededSideIsThatOfWholeBatch) {
  const Counted data(1000);
  const std::vector<std::int64_t> indices = {7, 3, 900};
  const Example whole = data.get_batch(indices);
  test::expect_same_bits(BatchReader(kInputs).read(data, indices).input, whole.input);
  data.inputs_read = 0;
  const BatchReader targets(kTargets);
  EXPECT_THAT(numbers_in(*targets.read(data, indices).target), ElementsAre(70, 30, 9000));
  EXPECT_THAT(numbers_in(*targets.read(data, indices).target), ElementsAre(70, 30, 9000));
  EXPECT_EQ(data.inputs_read, 1) << "sample 0";
}

TEST(BatchReader, WhereSizesVaryAllIsRead) {
  const auto data = padded(std::make_shared<Counted>(20), {{.field = "input"}});
  ASSERT_TRUE(data->sizes_vary());
  const std::vector<std::int64_t> indices = {4, 5};
  const Example batch = BatchReader(kNeither).read(*data, indices);
  test::expect_same_bits(batch.input, data->get_batch(indices).input);
  test::expect_same_bits(batch.target, data->get_batch(indices).target);
}

TEST(BatchReader, LoaderReadsOnlyNeedsOfItsRank) {
  const auto data = std::make_shared<Counted>(40), whole_data = std::make_shared<Counted>(40);
  const auto stream = [](const std::shared_ptr<Counted>& of, const Needed& needed) {
    return std::make_unique<Loader>(
        of,
        StreamOptions{.global_batch = 8, .num_microbatches = 2, .workers = 3, .seed = 4, .needed = needed});
  };
  const auto all = stream(whole_data, {}), neither = stream(data, kNeither), targets = stream(data, kTargets);
  std::vector<StepBatch> expected;
  for (int step = 0; step < 12; ++step) expected.push_back(all->next());
  for (const StepBatch& whole : expected) {
    const StepBatch spared = neither->next(), half = targets->next();
    EXPECT_EQ(spared.global_size, whole.global_size);
    for (std::size_t m = 0; m < 2; ++m) {
      EXPECT_EQ(spared.microbatches[m].rows(), whole.microbatches[m].rows());
      EXPECT_EQ(half.microbatches[m].input->sizes(), whole.microbatches[m].input->sizes());
      EXPECT_EQ(numbers_in(*half.microbatches[m].target), numbers_in(*whole.microbatches[m].target));
    }
  }
  EXPECT_EQ(data->inputs_read, 2) << "sample 0, once for each stream";
}

TEST(BatchReader, TargetsOfPartsAndMixturesMatchBatches) {
  const auto data = std::make_shared<Counted>(12);
  const auto mixed = mixture({data, std::make_shared<Counted>(5)}, {0.7, 0.3}, 30, 9);
  const std::vector<std::shared_ptr<const Dataset>> made = {
      std::make_shared<SubsetDataset>(data, std::vector<std::int64_t>{9, 2, 4}),
      std::make_shared<ConcatDataset>(std::vector<std::shared_ptr<const Dataset>>{data, data}),
      mixed,
      mixed->in_epoch(3),
      kept_samples(data, std::make_shared<SampleMemory>(1 << 20)),
      with_retries(data, {}),
      with_retries(data, {.skip = true})};
  for (const auto& each : made) {
    for (const std::vector<std::int64_t>& indices : {std::vector<std::int64_t>{2, 0, 1, 1}, {}}) {
      const Fields whole = each->get_batch(indices).target;
      const bool reads_to_know = each == made.back();
      data->inputs_read = 0;
      test::expect_same_bits(each->get_targets(indices), whole);
      if (!reads_to_know && !indices.empty()) {
        EXPECT_EQ(data->inputs_read, 0);
      }
    }
  }
}

/// Ten images in two classes. All but the first cannot be decoded.
class UnreadableImages : public testing::Test {
 protected:
  UnreadableImages() {
    std::string shard;
    for (int i = 0; i < 10; ++i) {
      const std::string bytes = i == 0 ? test::png_bytes(test::gradient(4, 4)) : "no image",
                        name = "a" + std::to_string(i);
      test::write_image(folder_ / "images" / (i < 5 ? "cat" : "dog") / (name + ".png"), bytes);
      shard +=
          test::tar_member(name + ".cls", std::to_string(i / 5)) + test::tar_member(name + ".png", bytes);
    }
    tar_ = test::write_tar(folder_ / "shard.tar", shard);
  }
  void expect_targets_alone(const DataOptions& options) const {
    const auto data = indexed(open_data(options, 1).train);
    ASSERT_FALSE(data->sizes_vary());
    const std::vector<std::int64_t> indices = {0, 1, 7, 3};
    EXPECT_THROW(data->get_batch(indices), DataError);
    EXPECT_THAT(numbers_in(*BatchReader(kTargets).read(*data, indices).target), ElementsAre(0, 0, 1, 0));
    EXPECT_EQ(BatchReader(kNeither).read(*data, indices).input->sizes(),
              (std::vector<std::int64_t>{4, 3, 4, 4}));
  }

  const test::TemporaryFolder folder_;
  std::filesystem::path tar_;
};

TEST_F(UnreadableImages, OfAFolderHaveTheirClasses) {
  expect_targets_alone({.name = "image_folder",
                        .path = (folder_ / "images").string(),
                        .image_size = 4,
                        .retries = 0,
                        .augment = {"resized_crop", "flip"},
                        .cache_samples_mib = 1});
}

TEST_F(UnreadableImages, OfAnArchiveHaveTheirClasses) {
  expect_targets_alone({.name = "webdataset", .path = tar_.string(), .image_size = 4, .retries = 0});
}

TEST(BatchReader, RecordIsParsedWithoutUnneededImage) {
  const RecordLayout layout = {.fields = {{.name = "photo", .form = FieldForm::kImage, .shape = {-1}},
                                          {.is_target = true, .name = "class", .dtype = at::kLong}}};
  std::string record;
  append_record(layout,
                {{{"photo", at::full({6}, 0, at::kByte)}}, {{"class", at::scalar_tensor(3, at::kLong)}}},
                record);
  EXPECT_THROW(parse_record(layout, record), DataError);
  const Example targets = parse_record(layout, record, kTargets);
  EXPECT_TRUE(targets.input.empty());
  EXPECT_EQ(targets.target.at(0).item<int>(), 3);
}

}  // namespace
}  // namespace trireme::data
