// The step lists, executed on numbers. Every rank ends with the sum, and the costs are those of the formulas.

#include "trireme/topology/all_reduce_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"

namespace trireme::topology {
namespace {

using Values = std::vector<std::vector<double>>;  // by rank

/// Executes the transfers by the rules of the header. Returns the values of all ranks.
Values carry_out(const std::vector<Transfer>& steps, Values values) {
  for (auto first = steps.begin(); first != steps.end();) {
    const Values before = values;
    // Arriving summands by receiver and element, then by sender.
    std::map<std::pair<int, std::int64_t>, std::map<int, double>> sums;
    auto each = first;
    for (; each != steps.end() && each->step == first->step; ++each) {
      for (std::int64_t i = each->begin; i < each->end; ++i) {
        const double value = before[static_cast<std::size_t>(each->from)][static_cast<std::size_t>(i)];
        if (each->adds) {
          sums[{each->to, i}][each->from] = value;
        } else {
          values[static_cast<std::size_t>(each->to)][static_cast<std::size_t>(i)] = value;
        }
      }
    }
    for (auto& [where, parts] : sums) {
      const auto rank = static_cast<std::size_t>(where.first);
      const auto i = static_cast<std::size_t>(where.second);
      parts[where.first] = before[rank][i];
      double sum = 0;
      for (const auto& [from, value] : parts) sum = from == parts.begin()->first ? value : sum + value;
      values[rank][i] = sum;
    }
    first = each;
  }
  return values;
}

class AllReduceSteps : public testing::TestWithParam<Algorithm> {};

TEST_P(AllReduceSteps, LeaveTheSumOnEveryRank) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const std::int64_t numel : {0, 1, 2, 7, 16, 37}) {
      Values values;
      std::vector<double> sum(static_cast<std::size_t>(numel));
      for (int rank = 0; rank < ranks; ++rank) {
        auto& mine = values.emplace_back();
        for (std::int64_t i = 0; i < numel; ++i) {
          // Integers that differ between ranks and positions. Sums are exact, and no two errors cancel.
          mine.push_back(static_cast<double>((rank + 1) * (rank + 1) * 1000 + i * (rank + 7)));
          sum[static_cast<std::size_t>(i)] += mine.back();
        }
      }
      const Values ended = carry_out(all_reduce_steps(GetParam(), ranks, numel), values);
      for (int rank = 0; rank < ranks; ++rank)
        ASSERT_EQ(ended[static_cast<std::size_t>(rank)], sum)
            << "rank " << rank << " of " << ranks << ", " << numel << " elements";
    }
  }
}

TEST_P(AllReduceSteps, LeaveTheSameBitsOnEveryRank) {
  for (int ranks = 2; ranks <= 17; ++ranks) {
    Values values;
    for (int rank = 0; rank < ranks; ++rank) {
      auto& mine = values.emplace_back();
      // The last bits of sums of these depend on the order.
      for (int i = 0; i < 23; ++i) mine.push_back(1.0 / (3.0 + 7 * rank + i) * (rank % 2 ? 1e10 : -1e-3));
    }
    const Values ended = carry_out(all_reduce_steps(GetParam(), ranks, 23), values);
    for (const auto& each : ended) ASSERT_EQ(each, ended.front()) << ranks << " ranks";
  }
}

TEST_P(AllReduceSteps, CostEqualsTheFormula) {
  const MessageCost cost{.alpha_s = 1e-3, .beta_s_per_byte = 1e-6, .gamma_s_per_byte = 0.3e-6};
  const std::int64_t numel = 16LL * 720720 * 17;  // divisible by every number of ranks
  for (int ranks = 1; ranks <= 17; ++ranks) {
    const double by_steps = seconds_of(all_reduce_steps(GetParam(), ranks, numel), ranks, 0.001, cost);
    const double by_formula = all_reduce_s(GetParam(), ranks, 0.001 * static_cast<double>(numel), cost);
    EXPECT_NEAR(by_steps, by_formula, 1e-9 * by_formula) << ranks << " ranks";
  }
}

TEST_P(AllReduceSteps, SendNothingToOneselfAndNothingEmpty) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    int step = 0;
    for (const Transfer& each : all_reduce_steps(GetParam(), ranks, 5)) {
      EXPECT_NE(each.from, each.to);
      EXPECT_LT(each.begin, each.end);
      EXPECT_GE(each.step, step) << "in the order of steps";
      step = each.step;
    }
  }
}

TEST_P(AllReduceSteps, RejectNoRankAndNegativeSizes) {
  EXPECT_THROW(all_reduce_steps(GetParam(), 0, 1), InvalidArgument);
  EXPECT_THROW(all_reduce_steps(GetParam(), 2, -1), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(All, AllReduceSteps, testing::ValuesIn(algorithms()),
                         [](const auto& row) { return name_of(row.param); });

/// Number of elements that go from one half of the members to the other.
std::int64_t numel_between_sites(const std::vector<Transfer>& steps, const Levels& levels) {
  const auto site_of = [&](int member) {
    const auto place = std::ranges::find(levels.members, member) - levels.members.begin();
    return place * levels.sizes.front() / static_cast<std::ptrdiff_t>(levels.members.size());
  };
  std::int64_t numel = 0;
  for (const Transfer& each : steps) {
    if (site_of(each.from) != site_of(each.to)) numel += each.end - each.begin;
  }
  return numel;
}

TEST(AllReduceByLevels, LeavesSameSumBitsOnEveryRank) {
  for (const Levels& levels :
       {Levels{{2, 2}, {0, 1, 2, 3}}, Levels{{2, 3}, {5, 0, 3, 1, 2, 4}}, Levels{{3, 2}, {0, 1, 2, 3, 4, 5}},
        Levels{{2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7}}, Levels{{3, 1, 2}, {0, 1, 2, 3, 4, 5}}, one_level(5)}) {
    const int ranks = static_cast<int>(levels.members.size());
    for (const std::int64_t numel : {0, 1, 5, 8, 37, 1000}) {
      Values values;
      std::vector<double> sum(static_cast<std::size_t>(numel));
      for (int rank = 0; rank < ranks; ++rank) {
        auto& mine = values.emplace_back();
        for (std::int64_t i = 0; i < numel; ++i) {
          mine.push_back(static_cast<double>((rank + 1) * (rank + 1) * 1000 + i * (rank + 7)));
          sum[static_cast<std::size_t>(i)] += mine.back();
        }
      }
      for (const auto& ended : carry_out(all_reduce_steps(levels, numel), values)) ASSERT_EQ(ended, sum);
      for (auto& mine : values) {
        for (double& each : mine) each = 1 / (each + 0.37);  // sums now depend on the order
      }
      const Values ended = carry_out(all_reduce_steps(levels, numel), values);
      for (const auto& each : ended) ASSERT_EQ(each, ended.front());
    }
  }
}

TEST(AllReduceByLevels, SendsPartsOnceBetweenSitesEachWay) {
  const Levels levels{{2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}};
  constexpr std::int64_t kNumel = 8000;
  // Each of two sites sends half a vector as sums, and half of the result.
  EXPECT_EQ(numel_between_sites(all_reduce_steps(levels, kNumel), levels), 2 * kNumel);
  EXPECT_EQ(numel_between_sites(all_reduce_steps(Algorithm::kTwoShot, 8, kNumel), levels), 8 * kNumel);
  EXPECT_EQ(all_reduce_steps(levels, kNumel).back().step, 3);
}

Values numbered(int ranks, std::int64_t numel) {
  Values values;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& mine = values.emplace_back();
    for (std::int64_t i = 0; i < numel; ++i)
      mine.push_back(static_cast<double>((rank + 1) * 1000 + i * (rank + 7)));
  }
  return values;
}

TEST(ReduceScatterSteps, SumEachPartAndKeepOthers) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const std::int64_t numel : {0, 1, 7, 37, 17 * 16}) {
      const Values before = numbered(ranks, numel);
      const Values ended = carry_out(reduce_scatter_steps(ranks, numel), before);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto me = static_cast<std::size_t>(rank);
        std::vector<double> expected = before[me];
        for (std::int64_t i = part_begin(rank, ranks, numel); i < part_begin(rank + 1, ranks, numel); ++i) {
          const auto place = static_cast<std::size_t>(i);
          expected[place] = 0;
          for (const auto& each : before) expected[place] += each[place];
        }
        ASSERT_EQ(ended[me], expected) << "rank " << rank << " of " << ranks << ", " << numel << " elements";
      }
    }
  }
}

TEST(AllGatherSteps, LeavePartsOfAllEverywhere) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const std::int64_t numel : {0, 1, 7, 37, 17 * 16}) {
      const Values before = numbered(ranks, numel);
      std::vector<double> expected;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto& theirs = before[static_cast<std::size_t>(rank)];
        expected.insert(expected.end(), theirs.begin() + part_begin(rank, ranks, numel),
                        theirs.begin() + part_begin(rank + 1, ranks, numel));
      }
      for (const auto& each : carry_out(all_gather_steps(ranks, numel), before))
        ASSERT_EQ(each, expected) << ranks << " ranks, " << numel << " elements";
    }
  }
}

TEST(StepsByLevels, LeaveSumsAndPartsWhereTheyBelong) {
  for (const Levels& levels :
       {Levels{{2, 2}, {0, 1, 2, 3}}, Levels{{2, 3}, {5, 0, 3, 1, 2, 4}}, Levels{{3, 2}, {0, 2, 4, 1, 3, 5}},
        Levels{{2, 2, 2}, {7, 1, 2, 3, 4, 5, 6, 0}},
        Levels{{2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}, one_level(5)}) {
    const int ranks = static_cast<int>(levels.members.size());
    for (const std::int64_t numel : {0, 1, 7, 37, 12 * 7}) {
      const Values before = numbered(ranks, numel);
      const Values sums = carry_out(reduce_scatter_steps(levels, numel), before);
      const Values gathered = carry_out(all_gather_steps(levels, numel), before);
      for (int rank = 0; rank < ranks; ++rank) {
        const std::int64_t begin = part_begin(rank, ranks, numel), end = part_begin(rank + 1, ranks, numel);
        for (std::int64_t i = begin; i < end; ++i) {
          const auto place = static_cast<std::size_t>(i);
          double sum = 0;
          for (const auto& each : before) sum += each[place];
          ASSERT_EQ(sums[static_cast<std::size_t>(rank)][place], sum) << rank << " of " << ranks << ", " << i;
          for (const auto& each : gathered)
            ASSERT_EQ(each[place], before[static_cast<std::size_t>(rank)][place]) << i << " of " << numel;
        }
      }
    }
  }
}

TEST(StepsByLevels, SendPartsOnceBetweenSites) {
  const Levels levels{{2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}};
  constexpr std::int64_t kNumel = 8000;
  // Each way half of the parts, those of the other site or those of this site.
  EXPECT_EQ(numel_between_sites(reduce_scatter_steps(levels, kNumel), levels), kNumel);
  EXPECT_EQ(numel_between_sites(all_gather_steps(levels, kNumel), levels), kNumel);
  EXPECT_EQ(numel_between_sites(all_gather_steps(8, kNumel), levels), 4 * kNumel);
}

TEST(StepsOfOneMessage, AwaitNoOtherAndRejectNoRank) {
  for (const auto& steps : {reduce_scatter_steps(5, 50), all_gather_steps(5, 50)}) {
    EXPECT_EQ(steps.size(), 20u);
    for (const Transfer& each : steps) EXPECT_EQ(each.step, 0);
  }
  EXPECT_THROW(reduce_scatter_steps(0, 1), InvalidArgument);
  EXPECT_THROW(all_gather_steps(2, -1), InvalidArgument);
}

TEST(AllReduceStepList, RingOfThreeMatchesWorkByHand) {
  std::string said;
  for (const Transfer& each : all_reduce_steps(Algorithm::kRing, 3, 3))
    said += text(each.step, ":", each.from, each.adds ? "+>" : "=>", each.to, "[", each.begin, "] ");
  EXPECT_EQ(said,
            "0:0+>1[0] 0:1+>2[1] 0:2+>0[2] 1:0+>1[2] 1:1+>2[0] 1:2+>0[1] "
            "2:0=>1[1] 2:1=>2[2] 2:2=>0[0] 3:0=>1[0] 3:1=>2[1] 3:2=>0[2] ");
}

}  // namespace
}  // namespace trireme::topology
