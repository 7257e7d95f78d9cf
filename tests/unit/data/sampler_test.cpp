#include "trireme/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

using Order = Sampler::Order;

TEST(Sampler, AnEpochHoldsEverySampleOnce) {
  const Sampler sampler(1000, 64, 7, Order::kShuffled);
  std::vector<std::int64_t> order = sampler.epoch_order(3);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  std::vector<std::int64_t> all(1000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order, all);
}

TEST(Sampler, TheOrderDependsOnSeedAndEpochOnly) {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch, std::int64_t batch) {
    return Sampler(100, batch, seed, Order::kShuffled).epoch_order(epoch);
  };
  EXPECT_EQ(order(1, 2, 10), order(1, 2, 64));
  EXPECT_NE(order(1, 2, 10), order(1, 3, 10));
  EXPECT_NE(order(1, 2, 10), order(2, 2, 10));
  EXPECT_NE(order(1, 2, 10), order(2, 1, 10));
}

TEST(Sampler, TheOrderIsTheSameOnEveryPlatform) {
  // Computed with a separate program from the description in random.h: a run that is resumed elsewhere, or by
  // a later version, goes on with the same samples.
  EXPECT_EQ(Sampler(10, 4, 42, Order::kShuffled).epoch_order(1),
            (std::vector<std::int64_t>{1, 8, 3, 6, 0, 9, 2, 5, 4, 7}));
}

TEST(Sampler, EveryPlaceIsEquallyLikely) {
  // 4000 epochs of 5 samples: each (sample, place) comes about 800 times; 5 sigma are 127.
  const Sampler sampler(5, 1, 0, Order::kShuffled);
  std::vector<int> count(25);
  for (std::uint64_t epoch = 0; epoch < 4000; ++epoch) {
    const std::vector<std::int64_t> order = sampler.epoch_order(epoch);
    for (std::size_t place = 0; place < 5; ++place)
      ++count[static_cast<std::size_t>(order[place]) * 5 + place];
  }
  for (const int times : count) EXPECT_NEAR(times, 800, 127);
}

TEST(Sampler, SequentialOrderIsTheFilesOrder) {
  EXPECT_EQ(Sampler(4, 2, 9, Order::kSequential).epoch_order(5), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(Sampler, TheLastBatchIsWhatIsLeft) {
  const Sampler sampler(10, 4, 0, Order::kShuffled);
  EXPECT_EQ(sampler.batches_per_epoch(), 3);
  EXPECT_EQ(sampler.batch_size(0), 4);
  EXPECT_EQ(sampler.batch_size(2), 2);
  EXPECT_THROW(sampler.batch_size(3), InvalidArgument);
}

TEST(Sampler, ABatchBeyondTheSamplesHoldsAllOfThem) {
  for (const std::int64_t global_batch : {std::int64_t{11}, std::numeric_limits<std::int64_t>::max()}) {
    const Sampler sampler(10, global_batch, 0, Order::kShuffled);
    EXPECT_EQ(sampler.batches_per_epoch(), 1) << global_batch;
    EXPECT_EQ(sampler.batch_size(0), 10) << global_batch;
  }
}

TEST(Sampler, RefusesNoSamplesAndEmptyBatches) {
  EXPECT_THROW(Sampler(0, 4, 0, Order::kShuffled), InvalidArgument);
  EXPECT_THROW(Sampler(4, 0, 0, Order::kShuffled), InvalidArgument);
}

TEST(SliceOf, PartsAreConsecutiveNearEqualAndComplete) {
  for (std::int64_t size = 0; size < 20; ++size) {
    for (std::int64_t count = 1; count < 8; ++count) {
      std::int64_t end = 0;
      for (std::int64_t index = 0; index < count; ++index) {
        const Slice slice = slice_of(size, index, count);
        EXPECT_EQ(slice.begin, end);
        EXPECT_EQ(slice.size(), size / count + (index < size % count ? 1 : 0));
        end = slice.end;
      }
      EXPECT_EQ(end, size);
    }
  }
  EXPECT_THROW(slice_of(4, 2, 2), InvalidArgument);
}

}  // namespace
}  // namespace trireme::data
