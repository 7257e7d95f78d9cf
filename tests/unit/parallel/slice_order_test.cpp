#include "trireme/parallel/data/internal/slice_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "trireme/base/random.h"

namespace trireme::parallel {
namespace {

/// Slices of all ranks, with as many in flight as a hook has.
class OrderOfRanks {
 public:
  struct Bucket {
    std::int64_t numel, need;
  };
  OrderOfRanks(int ranks, std::vector<Bucket> buckets)
      : buckets_(std::move(buckets)), orders_(static_cast<std::size_t>(ranks)), added_(orders_.size()) {}

  /// Adds the next bucket on that rank, if there is one.
  void add(std::size_t rank) {
    if (added_[rank] == buckets_.size()) return;
    const Bucket& next = buckets_[added_[rank]++];
    orders_[rank].add(next.numel, kSliceNumel, next.need);
  }
  /// The next slice on all ranks, which must be the same.
  SliceOrder::Slice step() {
    if (under_way_.size() == 2) {
      for (SliceOrder& order : orders_) order.learn(under_way_.front().first, under_way_.front().num);
      under_way_.pop_front();
    }
    std::vector<SliceOrder::Slice> slices;
    std::vector<std::uint64_t> firsts;
    int everywhere = SliceOrder::kWindow;
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      const std::uint64_t bucket = orders_[rank].choose();
      while (!orders_[rank].is_here(bucket)) add(rank);
      slices.push_back(orders_[rank].take(bucket));
      firsts.push_back(orders_[rank].first_unknown());
      everywhere = std::min(everywhere, orders_[rank].num_here());
    }
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
      EXPECT_EQ(slices[rank].bucket, slices[0].bucket) << "rank " << rank;
      EXPECT_EQ(slices[rank].begin, slices[0].begin) << "rank " << rank;
      EXPECT_EQ(firsts[rank], firsts[0]) << "rank " << rank;
    }
    under_way_.push_back({firsts[0], everywhere});
    return slices[0];
  }

  static constexpr std::int64_t kSliceNumel = 4;

 private:
  struct UnderWay {
    std::uint64_t first;
    int num;
  };
  const std::vector<Bucket> buckets_;
  std::vector<SliceOrder> orders_;
  std::vector<std::size_t> added_;
  std::deque<UnderWay> under_way_;
};

TEST(SliceOrder, UrgentSliceOvertakesWhenKnownEverywhere) {
  OrderOfRanks ranks(2, {{40, 1}, {8, 0}});
  const auto next = [&] { return ranks.step().bucket; };
  EXPECT_EQ(next(), 0u);
  ranks.add(0);  // on one rank only
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(), 0u);
  ranks.add(1);  // the next slice announces it; it counts after that has arrived, one slice later
  for (int i = 0; i < 2; ++i) EXPECT_EQ(next(), 0u);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(next(), 1u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(next(), 0u);
}

TEST(SliceOrder, FollowsReadinessWithoutKnowledge) {
  OrderOfRanks ranks(1, {{4, 2}, {4, 1}, {4, 0}});
  for (std::uint64_t bucket = 0; bucket < 3; ++bucket) EXPECT_EQ(ranks.step().bucket, bucket);
}

TEST(SliceOrder, UnsynchronizedRanksChooseSameSlices) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const auto below = [&](int limit) { return static_cast<std::int64_t>(random.uniform() * limit); };
    std::vector<OrderOfRanks::Bucket> buckets;
    std::int64_t slices = 0;
    for (std::int64_t i = 0; i < 1 + below(80); ++i) {
      buckets.push_back({1 + below(30), below(20)});
      slices += (buckets.back().numel + OrderOfRanks::kSliceNumel - 1) / OrderOfRanks::kSliceNumel;
    }
    OrderOfRanks ranks(3, buckets);
    std::vector<std::int64_t> taken(buckets.size());
    for (; slices > 0; --slices) {
      for (std::int64_t arrivals = below(4); arrivals > 0; --arrivals)
        ranks.add(static_cast<std::size_t>(below(3)));
      const SliceOrder::Slice slice = ranks.step();
      ASSERT_LT(slice.bucket, buckets.size());
      EXPECT_EQ(slice.begin, taken[slice.bucket]);
      taken[slice.bucket] += slice.numel;
    }
    for (std::size_t i = 0; i < buckets.size(); ++i) EXPECT_EQ(taken[i], buckets[i].numel) << seed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace trireme::parallel
