#include "trireme/data/kept_samples.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/image_files.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/data/decorators.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kSampleBytes = 100 * 4 + 8;

/// Reads are counted. Each sample is a part of a larger tensor with permuted dimensions.
class Counted : public Dataset {
 public:
  std::int64_t size() const override { return 10; }
  Example get(std::int64_t index) const override {
    ++reads;
    if (index == broken) throw DataError("sample is damaged");
    const at::Tensor whole = at::arange(index, index + 2000, at::kFloat).reshape({40, 50});
    return {whole.t().slice(0, 5, 15).slice(1, 7, 17), at::scalar_tensor(index, at::kLong)};
  }
  mutable std::atomic<int> reads = 0;
  std::int64_t broken = -1;
};

std::shared_ptr<SampleMemory> room_for(std::int64_t samples) {
  return std::make_shared<SampleMemory>(samples * kSampleBytes);
}

bool equal(const Example& one, const Example& other) {
  return at::equal(*one.input, *other.input) && at::equal(*one.target, *other.target);
}

TEST(KeptSamples, AreReadOnceAndStayConstant) {
  const auto counted = std::make_shared<Counted>();
  const auto kept = kept_samples(counted, room_for(10));
  const Counted fresh;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (std::int64_t i = 0; i < 10; ++i) EXPECT_TRUE(equal(kept->get(9 - i), fresh.get(9 - i)));
  }
  EXPECT_EQ(counted->reads, 10);
}

TEST(KeptSamples, KeptSampleHasMemoryOfItsValues) {
  const auto kept = kept_samples(std::make_shared<Counted>(), room_for(1));
  kept->get(3);
  const at::Tensor input = *kept->get(3).input;
  EXPECT_EQ(input.storage().nbytes(), input.nbytes());
  EXPECT_EQ(input.stride(0), 1) << "values lie in the order in which they lay";
}

TEST(KeptSamples, BeyondTheLimitTheFirstOnesStay) {
  const auto counted = std::make_shared<Counted>();
  const auto kept = kept_samples(counted, room_for(4));
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (std::int64_t i = 0; i < 10; ++i) kept->get(i);
  }
  EXPECT_EQ(counted->reads, 10 + 6 + 6);
}

TEST(KeptSamples, DatasetsShareLimitAndReleaseTheirPart) {
  const auto one = std::make_shared<Counted>(), other = std::make_shared<Counted>();
  const auto memory = room_for(5);
  auto kept_one = kept_samples(one, memory);
  const auto kept_other = kept_samples(other, memory);
  for (std::int64_t i = 0; i < 4; ++i) kept_one->get(i);
  for (int again = 0; again < 2; ++again) {
    for (std::int64_t i = 0; i < 4; ++i) kept_other->get(i);
  }
  EXPECT_EQ(other->reads, 4 + 3);
  kept_one.reset();
  for (int again = 0; again < 2; ++again) {
    for (std::int64_t i = 0; i < 4; ++i) kept_other->get(i);
  }
  EXPECT_EQ(other->reads, 7 + 3);
}

TEST(KeptSamples, UnreadableSampleIsRetriedWithoutRoom) {
  const auto counted = std::make_shared<Counted>();
  const auto kept = kept_samples(counted, room_for(1));
  counted->broken = 2;
  EXPECT_THROW(kept->get(2), DataError);
  EXPECT_THROW(kept->get(2), DataError);
  EXPECT_EQ(counted->reads, 2);
  counted->broken = -1;
  kept->get(2);
  kept->get(2);
  EXPECT_EQ(counted->reads, 3);
}

TEST(KeptSamples, ConcurrentReadersCountOnce) {
  for (int repeated = 0; repeated < 50; ++repeated) {
    const auto counted = std::make_shared<Counted>();
    const auto kept = kept_samples(counted, room_for(10));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (std::int64_t sample = 0; sample < 10; ++sample) kept->get(sample);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const int before = counted->reads;
    for (std::int64_t sample = 0; sample < 10; ++sample) kept->get(sample);
    EXPECT_EQ(counted->reads, before) << "there was room for all of them";
  }
}

TEST(KeptSamples, HitsAreCounted) {
  LoadingCounts counts;
  const LoadingMeter meter(counts);
  const auto kept = kept_samples(std::make_shared<Counted>(), room_for(2));
  for (int again = 0; again < 3; ++again) kept->get(0);
  EXPECT_EQ(counts.cache_misses, 1);
  EXPECT_EQ(counts.cache_hits, 2);
}

TEST(KeptSamples, DataThatVaryAreNotKept) {
  const auto flipped =
      std::make_shared<TransformedDataset>(std::make_shared<Counted>(), Transforms{random_flip()}, 1);
  EXPECT_NE(kept_samples(flipped, room_for(9))->in_epoch(1), nullptr);
  const auto sized = std::make_shared<TransformedDataset>(std::make_shared<Counted>(),
                                                          Transforms{resize_and_crop({4, 4})}, 1);
  EXPECT_EQ(kept_samples(sized, room_for(9))->in_epoch(1), nullptr);
}

/// A folder of twelve images of unequal sizes in two classes.
class KeptImages : public testing::Test {
 protected:
  KeptImages() {
    for (int i = 0; i < 12; ++i) {
      const auto path = folder_ / (i % 2 == 0 ? "cat" : "dog") / (std::to_string(i) + ".jpg");
      std::filesystem::create_directories(path.parent_path());
      test::write_image(path, test::jpeg_bytes(test::gradient(20 + i, 31 - i)));
    }
  }
  DataSource open(std::vector<std::string> augment, std::int64_t mib) const {
    DataOptions options;
    options.name = "image_folder";
    options.path = folder_.path();
    options.image_size = 16;
    options.augment = std::move(augment);
    options.cache_samples_mib = mib;
    return open_data(options, 3);
  }
  const test::TemporaryFolder folder_;
};

TEST_F(KeptImages, RunHasSameBitsWithAnyLimit) {
  const std::vector<std::vector<std::string>> all_augmentations = {
      {}, {"flip"}, {"crop", "flip"}, {"resized_crop", "flip"}};
  for (const auto& augment : all_augmentations) {
    const DataSource kept = open(augment, 1), decoded = open(augment, 0);
    LoadingCounts counts;
    const LoadingMeter meter(counts);
    const StreamOptions options = {.global_batch = 4, .seed = 5};
    const auto one = kept.train->open(options), other = decoded.train->open(options);
    for (int step = 0; step < 9; ++step) {
      const StepBatch a = one->next(), b = other->next();
      EXPECT_TRUE(equal(a.microbatches.front(), b.microbatches.front())) << step;
    }
    EXPECT_GE(one->report().counts.cache_hits, 11) << "the second epoch and what was read of the third";
    EXPECT_EQ(one->report().counts.cache_misses, 11);
    EXPECT_EQ(other->report().counts.cache_hits, 0);
    EXPECT_TRUE(equal(kept.test->get(0), decoded.test->get(0)));
    EXPECT_TRUE(equal(kept.test->get(0), decoded.test->get(0)));
  }
}

}  // namespace
}  // namespace trireme::data
