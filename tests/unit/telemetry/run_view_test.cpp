#include "trireme/telemetry/run_view.h"

#include <gtest/gtest.h>

#include "trireme/telemetry/run_metrics.h"

namespace trireme::telemetry {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t& spent(RankSample& rank, Activity activity) {
  return rank.usage.spent_ns[static_cast<std::size_t>(activity)];
}
std::int64_t& waited(RankSample& rank, Activity activity) {
  return rank.usage.waited_ns[static_cast<std::size_t>(activity)];
}

/// A rank that has entered a forward at that time.
RankSample rank_at(int rank, std::int64_t at_ns, std::uint64_t step) {
  RankSample sample;
  sample.status.rank = rank;
  sample.status.step = step;
  sample.status.action = "step " + std::to_string(step) + ": 0F0";
  sample.status.run = "/r/a";
  sample.usage.world_size = 2;
  sample.usage.now = {.begin_ns = at_ns, .activity = Activity::kForward, .microbatch = 0};
  sample.usage.spans = {sample.usage.now};
  sample.process = {.pid = 100 + rank, .state = 'S', .cpu_s = 1, .rss_bytes = 1 << 20};
  return sample;
}

/// Ten seconds. Rank 0 was in its backward, computed for 4 s and waited for 6 s. Rank 1 did not wait.
std::pair<RunSample, RunSample> two_samples() {
  RunSample before{.at_ns = 100 * kSecond,
                   .ranks = {rank_at(0, 100 * kSecond, 10), rank_at(1, 100 * kSecond, 10)}};
  RunSample now{.at_ns = 110 * kSecond,
                .ranks = {rank_at(0, 110 * kSecond, 30), rank_at(1, 110 * kSecond, 30)},
                .host = "here"};
  spent(now.ranks[0], Activity::kBackward) = 10 * kSecond;
  waited(now.ranks[0], Activity::kBackward) = 6 * kSecond;
  spent(now.ranks[1], Activity::kBackward) = 9 * kSecond;
  spent(now.ranks[1], Activity::kData) = 1 * kSecond;
  return {before, now};
}

TEST(RunView, HasRatesBetweenTwoSamples) {
  auto [before, now] = two_samples();
  now.ranks[0].usage.sent_bytes = 5000;
  now.ranks[0].usage.disk[0].read = 1000;
  now.ranks[0].usage.loader_fill = 8;
  now.ranks[0].usage.loader_batches = 10;
  now.ranks[0].process.cpu_s = 16;
  before.ranks[0].process.disk_read_bytes = before.ranks[0].process.disk_written_bytes = 100;
  now.ranks[0].process.disk_read_bytes = 1100;
  now.ranks[0].process.disk_written_bytes = 100;
  const RunView view = view_between(before, now);
  EXPECT_EQ(view.run, "/r/a");
  EXPECT_EQ(view.host, "here");
  EXPECT_EQ(view.world_size, 2);
  EXPECT_DOUBLE_EQ(view.window_s, 10);
  ASSERT_EQ(view.ranks.size(), 2U);
  const RankView& slow = view.ranks[0];
  const RankView& fast = view.ranks[1];
  EXPECT_EQ(slow.rank, 1) << "the slowest comes first";
  EXPECT_DOUBLE_EQ(slow.own_share, 1);
  EXPECT_DOUBLE_EQ(slow.wait_share, 0);
  EXPECT_DOUBLE_EQ(slow.data_share, 0.1);
  EXPECT_DOUBLE_EQ(fast.own_share, 0.4);
  EXPECT_DOUBLE_EQ(fast.wait_share, 0.6);
  EXPECT_DOUBLE_EQ(fast.steps_per_s, 2);
  EXPECT_DOUBLE_EQ(fast.sent_per_s, 500);
  EXPECT_DOUBLE_EQ(fast.disk[0].read, 100);
  EXPECT_DOUBLE_EQ(fast.process_disk->read, 100);
  EXPECT_DOUBLE_EQ(fast.process_disk->written, 0);
  EXPECT_FALSE(slow.process_disk.has_value()) << "the kernel does not tell";
  EXPECT_DOUBLE_EQ(*fast.loader_fill, 0.8);
  EXPECT_DOUBLE_EQ(fast.cpu_share, 1.5);
  EXPECT_EQ(fast.action, "0F0");
}

TEST(RunView, CountsTheSpanThatContinues) {
  RunSample before{.at_ns = 100 * kSecond, .ranks = {rank_at(0, 100 * kSecond, 10)}};
  RunSample now{.at_ns = 104 * kSecond, .ranks = before.ranks};
  now.ranks[0].usage.now.waits = true;
  now.ranks[0].usage.now.begin_ns = 101 * kSecond;
  now.ranks[0].usage.spans.push_back(now.ranks[0].usage.now);
  spent(now.ranks[0], Activity::kForward) = kSecond;
  const RunView view = view_between(before, now);
  EXPECT_DOUBLE_EQ(view.ranks[0].own_share, 0.25);
  EXPECT_DOUBLE_EQ(view.ranks[0].wait_share, 0.75);
  EXPECT_DOUBLE_EQ(view.ranks[0].for_s, 3);
  EXPECT_TRUE(view.ranks[0].waits);
  EXPECT_EQ(view.ranks[0].spans.size(), 2U) << "the one that went on at the first sample, and the wait";
}

TEST(RunView, OneSampleCountsFromStartOfRanks) {
  RunSample now{.at_ns = 110 * kSecond, .ranks = {rank_at(0, 106 * kSecond, 8)}};
  spent(now.ranks[0], Activity::kData) = 12 * kSecond;
  const RunView view = view_between({}, now);
  EXPECT_DOUBLE_EQ(view.window_s, 16);
  EXPECT_DOUBLE_EQ(view.ranks[0].steps_per_s, 0) << "a resumed rank did not begin with step 0";
  EXPECT_DOUBLE_EQ(view.ranks[0].data_share, 0.75);
}

TEST(Straggler, IsNamedWithItsCostliestActivity) {
  const auto [before, now] = two_samples();
  const auto found = straggler(view_between(before, now));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->activity, Activity::kBackward);
  EXPECT_DOUBLE_EQ(found->cost, 0.6);
  EXPECT_DOUBLE_EQ(found->longer, 1.5);
  EXPECT_EQ(describe(*found),
            "rank 1 takes 150 % longer than its peers, which costs 60 % of the time: most in backward, now: "
            "0F0");
}

RunView view_with(std::vector<double> own_shares) {
  RunView view;
  for (std::size_t i = 0; i < own_shares.size(); ++i) {
    RankView rank{.rank = static_cast<int>(i), .own_share = own_shares[i]};
    rank.own_shares[static_cast<std::size_t>(Activity::kForward)] = own_shares[i];
    view.ranks.push_back(rank);
  }
  return view;
}

TEST(Straggler, CostsMoreThanFivePercent) {
  EXPECT_FALSE(straggler(view_with({0.90, 0.90, 0.95})).has_value());
  const auto found = straggler(view_with({0.90, 0.90, 0.96}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 2);
  EXPECT_FALSE(straggler(view_with({0.01, 0.01, 0.03})).has_value()) << "three times as long, and of no cost";
  EXPECT_FALSE(straggler(view_with({})).has_value());
}

TEST(Straggler, IsComparedWithRanksOfItsStage) {
  RunView view = view_with({0.9, 0.9, 0.3, 0.3});
  view.ranks[2].role = view.ranks[3].role = 1;
  EXPECT_FALSE(straggler(view).has_value()) << "stages have different work";
  view.ranks[3].own_share = 0.5;
  EXPECT_EQ(straggler(view)->rank, 3);
  EXPECT_FALSE(straggler(view_with({1})).has_value()) << "there is nobody to compare with";
}

TEST(Straggler, IsStoppedRankFirst) {
  RunView view = view_with({0.2, 0.9, 0.2});
  view.ranks[2].stopped = true;
  view.ranks[2].action = "0B1\x1b[2J";
  const auto found = straggler(view);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(describe(*found), "rank 2 is stopped by a signal, now: 0B1\\x1b[2J; the others wait for it");
}

TEST(RunMetrics, FollowPrometheusFormat) {
  auto [before, now] = two_samples();
  now.pressure.io = {.some = 12.5, .full = 3};
  const std::string text = metrics_text(now, view_between(before, now));
  for (const char* line :
       {"# TYPE trireme_rank_step counter\n", "trireme_run_ranks{run=\"a\",host=\"here\"} 2\n",
        "trireme_rank_step{rank=\"1\"} 30\n",
        "trireme_rank_seconds_total{rank=\"0\",activity=\"backward\",waits=\"no\"} 4\n",
        "trireme_rank_seconds_total{rank=\"0\",activity=\"backward\",waits=\"yes\"} 6\n",
        "trireme_rank_disk_bytes_total{rank=\"0\",use=\"offload\",direction=\"read\"} 0\n",
        "trireme_host_pressure_percent{resource=\"io\",processes=\"some\"} 12.5\n",
        "trireme_straggler_cost{rank=\"1\",activity=\"backward\"} 0.6\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(text.find("resource=\"cpu\""), std::string::npos) << "the kernel does not tell";
}

}  // namespace
}  // namespace trireme::telemetry
