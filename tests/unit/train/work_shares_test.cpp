#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/train/parts/load_balancer.h"

namespace trireme::train {
namespace {

using data::Shares;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kWindow = static_cast<std::int64_t>(LoadBalancer::kWindow);

/// Seconds per sample of each rank, and the constant time per step.
struct SpeedsOfRanks {
  std::vector<double> sample_s;
  double step_s = 0;

  std::vector<double> work_s(const Shares& shares) const {
    std::vector<double> work;
    for (std::size_t i = 0; i < shares.size(); ++i)
      work.push_back(step_s + sample_s[i] * static_cast<double>(shares[i]));
    return work;
  }
};

/// Steps of full batches, reported one step late, as by a trainer.
class Steps {
 public:
  explicit Steps(LoadBalancer& shares) : shares_(shares), dealt_{{0, shares.now()}} {}

  /// The number of changes in this number of steps.
  int go(std::int64_t steps, const SpeedsOfRanks& ranks) {
    int changes = 0;
    for (; steps > 0; --steps) {
      const Shares& in = std::prev(dealt_.upper_bound(step_))->second;
      ++step_;
      if (const auto change = observe(ranks.work_s(in))) {
        ++changes;
        dealt_[change->from] = change->shares;
        why_ = change->why;
      }
    }
    return changes;
  }
  std::optional<LoadBalancer::Change> observe(std::vector<double> work_s, std::int64_t fewer = 0) {
    return shares_.observe(
        {.step = step_, .samples = batch_ - fewer, .full_batch = batch_, .work_s = std::move(work_s)},
        step_ + 4);
  }
  const std::string& why() const { return why_; }

 private:
  LoadBalancer& shares_;
  const std::int64_t batch_ = std::accumulate(shares_.now().begin(), shares_.now().end(), std::int64_t{0});
  std::map<std::int64_t, Shares> dealt_;
  std::int64_t step_ = 0;
  std::string why_;
};

LoadBalancer shares_of(Shares equal, std::int64_t least = 1) {
  std::vector<int> replica(equal.size());
  std::iota(replica.begin(), replica.end(), 0);
  return LoadBalancer({.equal = std::move(equal), .least = least, .replica = std::move(replica)});
}

TEST(LoadBalancer, FollowThroughputOfReplicas) {
  LoadBalancer shares = shares_of({16, 16, 16});
  Steps steps(shares);
  const SpeedsOfRanks ranks{.sample_s = {1, 1, 2}};
  EXPECT_EQ(steps.go(kWindow + 1, ranks), 0) << "the first steps do not count";
  EXPECT_EQ(steps.go(1, ranks), 1);
  EXPECT_THAT(shares.now(), ElementsAre(19, 19, 10)) << "2/5, 2/5 and 1/5 of 48";
  EXPECT_THAT(steps.why(), HasSubstr("replica 2 takes 10 samples of a batch instead of 16"));
  EXPECT_EQ(steps.go(20 * kWindow, ranks), 0) << "nothing is better";
}

TEST(LoadBalancer, StayWhereAllAreAboutAsFast) {
  LoadBalancer shares = shares_of({16, 16});
  Steps steps(shares);
  EXPECT_EQ(steps.go(20 * kWindow, {.sample_s = {1, 1.04}}), 0);
  EXPECT_THAT(shares.now(), ElementsAre(16, 16));
}

TEST(LoadBalancer, ApproachOptimumDespiteFixedStepCost) {
  LoadBalancer shares = shares_of({32, 32});
  Steps steps(shares);
  const SpeedsOfRanks ranks{.sample_s = {1, 3}, .step_s = 20};
  const auto slowest_s = [&] { return std::ranges::max(ranks.work_s(shares.now())); };
  EXPECT_EQ(slowest_s(), 20 + 96);
  EXPECT_GT(steps.go(20 * kWindow, ranks), 1);
  EXPECT_LT(slowest_s(), 1.1 * (20 + 48)) << "48 and 16 samples are best";
}

TEST(LoadBalancer, RecoverWithSlowReplica) {
  LoadBalancer shares = shares_of({16, 16});
  Steps steps(shares);
  steps.go(4 * kWindow, {.sample_s = {1, 3}});
  EXPECT_THAT(shares.now(), ElementsAre(24, 8));
  steps.go(4 * kWindow, {.sample_s = {1, 1}});
  EXPECT_THAT(shares.now(), ElementsAre(16, 16));
}

TEST(LoadBalancer, KeepReplicasWithinMinimumAndDouble) {
  LoadBalancer shares = shares_of({8, 8, 8, 8}, 2);
  Steps steps(shares);
  steps.go(20 * kWindow, {.sample_s = {1, 100, 100, 100}});
  EXPECT_EQ(shares.now()[0], 16);
  EXPECT_EQ(std::accumulate(shares.now().begin(), shares.now().end(), std::int64_t{0}), 32);
  steps.go(20 * kWindow, {.sample_s = {1e4, 1, 1, 1}});
  EXPECT_EQ(shares.now()[0], 2);
}

TEST(LoadBalancer, RevertUselessChangesAndWaitLonger) {
  LoadBalancer shares = shares_of({16, 16});
  Steps steps(shares);
  // Replica 1 takes the same time for any number of samples.
  const auto stubborn = [](const Shares&) { return std::vector<double>{1, 2}; };
  int changes = 0;
  std::string last;
  std::vector<Shares> seen;
  LoadBalancer& observed = shares;
  for (std::int64_t step = 1; step <= 400 * kWindow; ++step) {
    if (auto change = observed.observe(
            {.step = step, .samples = 32, .full_batch = 32, .work_s = stubborn(observed.now())}, step)) {
      ++changes;
      seen.push_back(change->shares);
      last = change->why;
    }
  }
  ASSERT_GE(seen.size(), 2U);
  EXPECT_EQ(seen[0], (Shares{21, 11}));
  EXPECT_EQ(seen[1], (Shares{16, 16})) << "back";
  EXPECT_LT(changes, 30) << "in 400 windows";
}

TEST(LoadBalancer, FollowSlowestRankOnFullBatches) {
  LoadBalancer shares({.equal = {8, 8}, .least = 1, .replica = {0, 1, 0, 1}});
  for (std::int64_t step = 1; step <= 10 * kWindow; ++step) {
    EXPECT_FALSE(
        shares.observe({.step = step, .samples = 15, .full_batch = 16, .work_s = {1, 3, 1, 1}}, step));
  }
  std::optional<LoadBalancer::Change> change;
  std::int64_t step = 1000;
  for (; !change; ++step)
    change = shares.observe({.step = step, .samples = 16, .full_batch = 16, .work_s = {1, 1, 1, 3}}, 5000);
  EXPECT_EQ(step, 1000 + kWindow);
  EXPECT_EQ(change->shares, (Shares{12, 4}));
  EXPECT_EQ(change->from, 5000);
}

TEST(LoadBalancer, AreAlwaysABatch) {
  Random random(3);
  for (int drawn = 0; drawn < 300; ++drawn) {
    Shares equal(1 + random.below(9));
    const auto least = static_cast<std::int64_t>(1 + random.below(3));
    const auto each = least + static_cast<std::int64_t>(random.below(20));
    for (std::int64_t& share : equal) share = each;
    equal.front() += static_cast<std::int64_t>(random.below(2));
    const std::int64_t batch = std::accumulate(equal.begin(), equal.end(), std::int64_t{0});
    LoadBalancer shares = shares_of(equal, least);
    for (std::int64_t step = 1; step <= 10 * kWindow; ++step) {
      std::vector<double> work_s;
      for (std::size_t i = 0; i < equal.size(); ++i)
        work_s.push_back(random.uniform() < 0.1F ? 0 : random.uniform());
      shares.observe({.step = step, .samples = batch, .full_batch = batch, .work_s = std::move(work_s)},
                     step);
      ASSERT_EQ(std::accumulate(shares.now().begin(), shares.now().end(), std::int64_t{0}), batch);
      ASSERT_GE(*std::ranges::min_element(shares.now()), least);
      ASSERT_LE(*std::ranges::max_element(shares.now()), 2 * *std::ranges::max_element(equal));
    }
  }
}

TEST(LoadBalancer, ForgetMeasurementsWhenBatchesGrow) {
  LoadBalancer shares = shares_of({16, 16, 16});
  const std::vector<double> sample_s = {1, 1, 2};
  std::int64_t step = 0, changes = 0;
  const auto go = [&](std::int64_t steps, std::int64_t batch) {
    for (; steps > 0; --steps) {
      const Shares in = data::scaled_shares(shares.now(), batch, 1);
      std::vector<double> work_s;
      for (std::size_t i = 0; i < in.size(); ++i) work_s.push_back(sample_s[i] * static_cast<double>(in[i]));
      ++step;
      const auto change = shares.observe(
          {.step = step, .samples = batch, .full_batch = batch, .work_s = std::move(work_s)}, step);
      changes += change ? 1 : 0;
    }
  };
  go(kWindow - 1, 24);
  EXPECT_EQ(changes, 0);
  go(kWindow + 1, 12);
  EXPECT_EQ(changes, 0) << "steps of 24 samples say nothing about these";
  go(1, 12);
  EXPECT_EQ(changes, 1);
  EXPECT_THAT(shares.now(), ElementsAre(19, 19, 10)) << "2/5, 2/5 and 1/5 of 48, measured at 12";
  go(4 * kWindow, 48);
  EXPECT_EQ(changes, 1) << "nothing is better, and longer steps of larger batches take nothing back";
}

}  // namespace
}  // namespace trireme::train
