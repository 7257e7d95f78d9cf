#include "trireme/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::data {
namespace {

using Samples = std::vector<std::int64_t>;

OrderOptions shuffled(std::uint64_t seed) { return {.seed = seed}; }

Samples epoch_of(std::int64_t num_samples, const OrderOptions& options, std::uint64_t epoch) {
  const EpochOrder order = Sampler(num_samples, options).order_of(epoch);
  Samples samples;
  for (std::int64_t place = 0; place < num_samples; ++place) samples.push_back(order[place]);
  return samples;
}

Samples first_numbers(std::int64_t count) {
  Samples all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The deviation of the counts of n x n pairs from equal counts, by chi squared, in its standard deviations.
enum class Diagonal { kCounts, kIsEmpty };
double sigmas_off(const std::vector<int>& counts, std::size_t n, Diagonal diagonal) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  const double pairs = static_cast<double>(n * n - (diagonal == Diagonal::kIsEmpty ? n : 0));
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (diagonal == Diagonal::kIsEmpty && i / n == i % n) continue;
    sum += (counts[i] - total / pairs) * (counts[i] - total / pairs) / (total / pairs);
  }
  const double freedom = diagonal == Diagonal::kIsEmpty ? pairs - 1 : static_cast<double>((n - 1) * (n - 1));
  return (sum - freedom) / std::sqrt(2 * freedom);
}

TEST(Sampler, AnEpochHoldsEverySampleOnce) {
  for (const std::int64_t size : {1, 2, 3, 5, 255, 256, 257, 1000, 4096, 10007}) {
    Samples order = epoch_of(size, shuffled(7), 3);
    if (size > 3) {
      EXPECT_FALSE(std::is_sorted(order.begin(), order.end())) << size;
    }
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, first_numbers(size));
  }
}

TEST(Sampler, OrderDependsOnSeedAndEpochOnly) {
  EXPECT_EQ(epoch_of(100, shuffled(1), 2), epoch_of(100, shuffled(1), 2));
  EXPECT_NE(epoch_of(100, shuffled(1), 2), epoch_of(100, shuffled(1), 3));
  EXPECT_NE(epoch_of(100, shuffled(1), 2), epoch_of(100, shuffled(2), 2));
  EXPECT_NE(epoch_of(100, shuffled(1), 2), epoch_of(100, shuffled(2), 1));
}

TEST(Sampler, OrderIsSameOnEveryPlatform) {
  // Computed with a separate program (tests/parity/permutation_reference.py) from the description in
  // permutation.h. So a run that is resumed on another machine, or by a later version, continues with the
  // same samples.
  EXPECT_EQ(epoch_of(10, shuffled(42), 1), (Samples{0, 1, 8, 3, 5, 9, 6, 4, 7, 2}));
  const EpochOrder large = Sampler(60000, shuffled(42)).order_of(1);
  EXPECT_EQ((Samples{large[0], large[1], large[2], large[59999]}), (Samples{24840, 22652, 55691, 50859}));
}

TEST(Sampler, EveryOrderOfSamplesIsEquallyLikely) {
  // 24,000 epochs of 4 samples: each of the 24 orders comes about 1000 times; 5 sigma are 155.
  const Sampler sampler(4, shuffled(0));
  std::map<Samples, int> count;
  for (std::uint64_t epoch = 0; epoch < 24000; ++epoch) {
    const EpochOrder order = sampler.order_of(epoch);
    ++count[{order[0], order[1], order[2], order[3]}];
  }
  EXPECT_EQ(count.size(), 24U);
  for (const auto& [order, times] : count) EXPECT_NEAR(times, 1000, 155);
}

TEST(Sampler, PlacesAndNeighboursAreEquallyLikely) {
  // Chi squared of (sample, place) and of (sample, next sample) over 4000 epochs; 5 sigma.
  for (const std::int64_t size : {5, 37, 255, 256, 300}) {
    const Sampler sampler(size, shuffled(1));
    const auto n = static_cast<std::size_t>(size);
    std::vector<int> places(n * n), neighbours(n * n);
    for (std::uint64_t epoch = 0; epoch < 4000; ++epoch) {
      const EpochOrder order = sampler.order_of(epoch);
      for (std::int64_t place = 0; place < size; ++place) {
        const auto sample = static_cast<std::size_t>(order[place]);
        ++places[sample * n + static_cast<std::size_t>(place)];
        if (place > 0) ++neighbours[static_cast<std::size_t>(order[place - 1]) * n + sample];
      }
    }
    EXPECT_LT(sigmas_off(places, n, Diagonal::kCounts), 5) << size;
    EXPECT_LT(sigmas_off(neighbours, n, Diagonal::kIsEmpty), 5) << size;
  }
}

TEST(Sampler, FindsAnyPlaceAmongTrillionsAtOnce) {
  const std::int64_t size = std::int64_t{1} << 45;
  const EpochOrder order = Sampler(size, shuffled(3)).order_of(0);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) seen.insert(order[size - 1 - i * 31]);
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), size);
}

TEST(Sampler, SequentialOrderIsTheFilesOrder) {
  EXPECT_EQ(epoch_of(4, {.order = Order::kSequential}, 5), (Samples{0, 1, 2, 3}));
}

TEST(Sampler, OpensLimitedNumberOfShards) {
  const Samples ends = {10, 13, 40, 41, 60, 100};
  const OrderOptions options = {.seed = 5, .shard_ends = ends, .open_shards = 2};
  std::set<std::vector<std::ptrdiff_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    const Samples order = epoch_of(100, options, epoch);
    Samples sorted = order;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, first_numbers(100));
    // Shards in the order of first appearance. When a third shard appears, the two before it are complete.
    std::vector<std::ptrdiff_t> appeared;
    std::map<std::ptrdiff_t, std::int64_t> left;
    for (std::size_t i = 0; i < ends.size(); ++i)
      left[static_cast<std::ptrdiff_t>(i)] = ends[i] - (i == 0 ? 0 : ends[i - 1]);
    for (const std::int64_t sample : order) {
      const auto shard = std::upper_bound(ends.begin(), ends.end(), sample) - ends.begin();
      if (std::find(appeared.begin(), appeared.end(), shard) == appeared.end()) {
        if (appeared.size() % 2 == 0) {
          for (const std::ptrdiff_t before : appeared) EXPECT_EQ(left[before], 0) << before;
        }
        appeared.push_back(shard);
      }
      --left[shard];
    }
    orders.insert(appeared);
  }
  EXPECT_GT(orders.size(), 15U);  // of 720 orders of the shards
}

TEST(Sampler, MixesAllShardsUnlessLimited) {
  EXPECT_EQ(epoch_of(100, {.seed = 5, .shard_ends = {10, 100}}, 1), epoch_of(100, shuffled(5), 1));
}

TEST(Sampler, RejectsShardsThatAreNotTheSamples) {
  const auto refused = [](Samples ends) {
    EXPECT_THROW(Sampler(10, {.shard_ends = std::move(ends), .open_shards = 1}), InvalidArgument);
  };
  refused({4, 9});
  refused({4, 4, 10});
  refused({6, 4, 10});
  refused({0, 10});
  EXPECT_THROW(Sampler(10, {.open_shards = -1}), InvalidArgument);
}

TEST(Sampler, RejectsNoSamples) { EXPECT_THROW(Sampler(0, shuffled(0)), InvalidArgument); }

TEST(Shares, SmallBatchReachesEveryReplicaInProportion) {
  EXPECT_EQ(scaled_shares({30, 10}, 20, 1), (Shares{15, 5}));
  EXPECT_EQ(scaled_shares({30, 10}, 40, 1), (Shares{30, 10}));
  EXPECT_EQ(scaled_shares({60, 1, 3}, 16, 2), (Shares{8, 4, 4})) << "two of each micro-batch stay";
  EXPECT_EQ(scaled_shares({60, 1, 3}, 7, 2), (Shares{3, 2, 2})) << "one, where there are not more";
  EXPECT_THROW(scaled_shares({60, 1, 3}, 5, 2), InvalidArgument);
  Random random(8);
  for (int again = 0; again < 2000; ++again) {
    const auto below = [&](std::uint64_t most) { return static_cast<std::int64_t>(random.below(most)); };
    const std::int64_t microbatches = 1 + below(3);
    Shares shares;
    for (std::int64_t ranks = 1 + below(6); ranks > 0; --ranks) shares.push_back(microbatches + below(50));
    const std::int64_t parts = std::ssize(shares) * microbatches, size = parts + below(90);
    const Shares scaled = scaled_shares(shares, size, microbatches);
    EXPECT_EQ(std::accumulate(scaled.begin(), scaled.end(), std::int64_t{0}), size);
    EXPECT_GE(*std::ranges::min_element(scaled), microbatches * std::min<std::int64_t>(2, size / parts));
  }
}

TEST(BalancedPart, PartsHaveEqualPlacesAndCost) {
  Random random(3);
  for (int again = 0; again < 200; ++again) {
    const auto size = static_cast<std::int64_t>(random.below(60)),
               count = 1 + static_cast<std::int64_t>(random.below(8));
    std::vector<double> costs;
    for (std::int64_t i = 0; i < size; ++i) costs.push_back(1 + static_cast<double>(random.below(100)));
    Samples all;
    double dearest = 0, mean = std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(count);
    for (std::int64_t part = 0; part < count; ++part) {
      const Samples places = balanced_part(costs, part, count);
      EXPECT_EQ(std::ssize(places), slice_of(size, part, count).size());
      EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
      double cost = 0;
      for (const std::int64_t place : places) cost += costs[static_cast<std::size_t>(place)];
      dearest = std::max(dearest, cost);
      all.insert(all.end(), places.begin(), places.end());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, first_numbers(size));
    // Each part gets one of every `count` samples in the order of cost. So no part exceeds the mean by more
    // than one sample.
    EXPECT_LE(dearest, mean + 100) << size << " places, " << count << " parts";
  }
}

TEST(BalancedPart, DealsTheDearestFirst) {
  EXPECT_EQ(balanced_part(std::vector<double>{7, 1, 5, 3}, 0, 2), (Samples{0, 1}));
  EXPECT_EQ(balanced_part(std::vector<double>{7, 1, 5, 3}, 1, 2), (Samples{2, 3}));
}

TEST(BalancedPart, EqualCostsAreDealtInTurn) {
  EXPECT_EQ(balanced_part(std::vector<double>(7, 1.0), 0, 3), (Samples{0, 3, 6}));
  EXPECT_EQ(balanced_part(std::vector<double>(7, 1.0), 2, 3), (Samples{2, 5}));
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
