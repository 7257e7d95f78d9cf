// Published numbers of schedules, compared with the costs of our schedules in the simulator.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "tests/golden/known_schedules.h"
#include "tests/support/paths.h"
#include "trireme/base/text.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {
namespace {

/// One row of the table: sizes, times and the printed bubble rates.
struct Table5Row {
  std::string model;
  int p, m;
  StageCost cost;
  double hop;
  int chunks;
  double one_f_one_b, interleaved, zb_h1, zb_h2, zb_1p, zb_2p;
};

std::vector<Table5Row> table5() {
  std::vector<Table5Row> rows;
  std::istringstream file(read_file(test::checkout("tests/golden/zero_bubble_table5.csv")));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#') || line.starts_with("model")) continue;
    const std::vector<std::string> cells = split(line, ',');
    const auto number = [&](std::size_t i) { return std::stod(cells.at(i)); };
    rows.push_back({cells[0],
                    std::stoi(cells.at(1)),
                    std::stoi(cells.at(2)),
                    {number(3), number(4), number(5)},
                    number(6),
                    std::stoi(cells.at(7)),
                    number(8),
                    number(9),
                    number(10),
                    number(11),
                    number(12),
                    number(13)});
  }
  return rows;
}

/// Rates are printed with four decimals.
double printed(double rate) { return std::round(rate * 1e4) / 1e4; }

class ZeroBubbleTable5 : public testing::TestWithParam<Table5Row> {
 protected:
  static Costs costs(int chunks = 1) {
    const StageCost& whole = GetParam().cost;
    Costs costs;
    costs.stages = {{whole.forward / chunks, whole.backward_input / chunks, whole.backward_weight / chunks}};
    costs.hop = GetParam().hop;
    return costs;
  }
  static Timeline run(const char* name, const Costs& costs, int chunks = 0) {
    ScheduleOptions options{
        .num_ranks = GetParam().p, .num_chunks = chunks, .num_microbatches = GetParam().m};
    options.costs = costs;
    return simulate(make_schedule(name, options), costs);
  }
};

TEST_P(ZeroBubbleTable5, FixedOrdersGiveThePrintedRates) {
  const Table5Row& row = GetParam();
  EXPECT_DOUBLE_EQ(printed(run("1f1b", costs()).bubble_rate), row.one_f_one_b);
  EXPECT_DOUBLE_EQ(printed(run("zb-h1", costs()).bubble_rate), row.zb_h1);
  EXPECT_DOUBLE_EQ(printed(run("zb-h2", costs()).bubble_rate), row.zb_h2);
}

// In the model of simulate.h, the last micro-batch of interleaved 1F1B passes 2(pv - 1) hops that no
// computation hides. The printed rates have one round of the ranks less, 2(pv - 1) - p hops, in every row.
TEST_P(ZeroBubbleTable5, InterleavedHasPrintedRateAndHops) {
  const Table5Row& row = GetParam();
  const Timeline timeline = run("interleaved-1f1b", costs(row.chunks), row.chunks);
  const double cost = timeline.cost - row.p * row.hop;
  EXPECT_DOUBLE_EQ(printed((cost - timeline.work) / cost), row.interleaved);
}

// The search keeps 0.44 of an activation between I and W. The models of the paper keep 32h / (34h + 5as),
// which is 0.37 to 0.43. So the memory limit here is the tighter one.
TEST_P(ZeroBubbleTable5, SearchedOrdersAreNoSlowerWithinMemory) {
  const Table5Row& row = GetParam();
  Costs searched = costs();
  searched.kept_for_weight = 0.44;
  const Timeline one = run("zb-1p", searched);
  const Timeline two = run("zb-2p", searched);
  const auto peak = [](const Timeline& t) {
    return *std::max_element(t.peak_memory.begin(), t.peak_memory.end());
  };
  EXPECT_LE(printed(one.bubble_rate), row.zb_1p);
  EXPECT_LE(printed(two.bubble_rate), row.zb_2p);
  EXPECT_LE(peak(one), row.p + 1e-9);
  EXPECT_LE(peak(two), 2 * row.p + 1e-9);
  std::cout << std::fixed << std::setprecision(4) << row.model << " p=" << row.p << " m=" << row.m
            << ", ours/paper: 1F1B " << run("1f1b", costs()).bubble_rate << "/" << row.one_f_one_b
            << ", 1F1B-I " << run("interleaved-1f1b", costs(row.chunks), row.chunks).bubble_rate << "/"
            << row.interleaved << ", ZB-H1 " << run("zb-h1", costs()).bubble_rate << "/" << row.zb_h1
            << ", ZB-H2 " << run("zb-h2", costs()).bubble_rate << "/" << row.zb_h2 << ", ZB-1p "
            << one.bubble_rate << "/" << row.zb_1p << ", ZB-2p " << two.bubble_rate << "/" << row.zb_2p
            << "\n";
}

INSTANTIATE_TEST_SUITE_P(AllRows, ZeroBubbleTable5, testing::ValuesIn(table5()), [](const auto& suite) {
  std::string name = suite.param.model + "m" + std::to_string(suite.param.m);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST(ScheduleFigures, SearchedAndTorchOrdersMatchAuthorsScheduler) {
  int compared = 0;
  for (const KnownProgram& known : known_programs()) {
    if (known.content != "metric") continue;
    const Timeline theirs = simulate(parse_csv(known.csv));
    const Timeline ours = simulate(make_schedule(known.schedule, known.options));
    EXPECT_LE(ours.cost, theirs.cost) << known.title;
    EXPECT_LE(ours.makespan, theirs.makespan) << known.title;
    for (std::size_t rank = 0; rank < ours.peak_activations.size(); ++rank) {
      EXPECT_LE(ours.peak_activations[rank], theirs.peak_activations[rank])
          << known.title << " rank " << rank;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 6);
}

/// Calls check(p, m, costs) for all sizes and three sets of times.
template <class Check>
void for_all_sizes(const Check& check) {
  for (const StageCost cost : {StageCost{1, 1, 1}, StageCost{3, 2.5, 2}, StageCost{18522, 18086, 9337}}) {
    Costs costs;
    costs.stages = {cost};
    for (int p = 1; p <= 16; ++p) {
      for (int m = 1; m <= 64; ++m) check(p, m, costs);
    }
  }
}

/// Checks cost - work, for stages of time F + I + W.
void expect_bubble(const char* name, const ScheduleOptions& options, const Costs& costs, double bubble) {
  const Timeline timeline = simulate(make_schedule(name, options), costs);
  ASSERT_NEAR(timeline.cost - timeline.work, bubble, 1e-9 * timeline.cost)
      << name << " p=" << options.num_ranks << " v=" << options.num_chunks
      << " m=" << options.num_microbatches;
}

double whole(const Costs& costs) {
  const StageCost& cost = costs.stages.front();
  return cost.forward + cost.backward_input + cost.backward_weight;
}

// GPipe, arXiv 1811.06965, section 2.2; 1F1B and interleaved, arXiv 2104.04473, sections 2.2.1 and 2.2.2.
// With v chunks, a stage takes 1/v of the rank's time. That divides the bubble by v.
TEST(ScheduleFigures, BubblesOfOrdersWithoutSplitBackward) {
  for_all_sizes([](int p, int m, const Costs& costs) {
    const ScheduleOptions plain{.num_ranks = p, .num_microbatches = m};
    expect_bubble("naive", plain, costs, (p - 1) * m * whole(costs));
    expect_bubble("gpipe", plain, costs, (p - 1) * whole(costs));
    expect_bubble("1f1b", plain, costs, (p - 1) * whole(costs));
    for (const int v : {1, 2, 3}) {
      const ScheduleOptions chunked{.num_ranks = p, .num_chunks = v, .num_microbatches = m};
      if (m >= p) expect_bubble("looped-bfs", chunked, costs, (p - 1) * whole(costs));
      if (m % p == 0) expect_bubble("interleaved-1f1b", chunked, costs, (p - 1) * whole(costs));
    }
  });
}

// Zero bubble, arXiv 2401.10241, table 2.
TEST(ScheduleFigures, BubblesOfOrdersWithSplitBackward) {
  for_all_sizes([](int p, int m, const Costs& costs) {
    const StageCost& cost = costs.stages.front();
    const double both = cost.forward + cost.backward_input;
    const ScheduleOptions plain{.num_ranks = p, .num_microbatches = m};
    if (m >= p) expect_bubble("zb-h1", plain, costs, (p - 1) * (both - cost.backward_weight));
    if (m >= 2 * p - 1) {
      expect_bubble("zb-h2", plain, costs, std::max(0.0, (p - 1) * (both - 2 * cost.backward_weight)));
    }
    for (const int v : {1, 2, 3}) {
      const ScheduleOptions chunked{.num_ranks = p, .num_chunks = v, .num_microbatches = m};
      if (m % p == 0)
        expect_bubble("interleaved-zb", chunked, costs, (p - 1) * (both - cost.backward_weight));
    }
  });
}

TEST(ScheduleFigures, ZbvHasNoBubbleWithEqualParts) {
  for (int p = 1; p <= 16; ++p) {
    for (int m = 2 * p; m <= 64; ++m) {
      expect_bubble("zb-v", {.num_ranks = p, .num_microbatches = m}, {}, 0);
    }
  }
}

// deepseek-ai/DualPipe, README: (PP/2 - 1)(F&B + B - 3W); PP is the number of stages.
TEST(ScheduleFigures, BubblesOfDualPipe) {
  for (int p = 2; p <= 16; p += 2) {
    for (int m = 2 * p; m <= 64; m += 2) {
      const ScheduleOptions options{.num_ranks = p, .num_microbatches = m};
      const int pairs = p / 2;
      expect_bubble("dualpipe", options, {}, (pairs - 1) * (3 + 2 - 3));
      expect_bubble("dualpipe-v", options, {}, (p - 1) * (3 + 2 - 3));
    }
  }
}

TEST(ScheduleFigures, PeaksOfActivations) {
  const auto expect_peaks = [](const char* name, const ScheduleOptions& options, const auto& peak_of_rank) {
    const Timeline timeline = simulate(make_schedule(name, options));
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      ASSERT_EQ(timeline.peak_activations[static_cast<std::size_t>(rank)], peak_of_rank(rank))
          << name << " p=" << options.num_ranks << " m=" << options.num_microbatches << " rank " << rank;
    }
  };
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; ++m) {
      const ScheduleOptions plain{.num_ranks = p, .num_microbatches = m};
      expect_peaks("naive", plain, [](int) { return 1; });
      expect_peaks("gpipe", plain, [&](int) { return m; });
      expect_peaks("1f1b", plain, [&](int rank) { return std::min(m, p - rank); });
      expect_peaks("pipedream", plain, [&](int rank) { return std::min(m, p - rank); });
      expect_peaks("zb-h1", plain, [&](int) { return std::min(m, p); });
      expect_peaks("zb-h2", plain, [&](int) { return std::min(m, 2 * p - 1); });
      if (m % p != 0) continue;
      for (const int v : {1, 2, 3}) {
        const ScheduleOptions chunked{.num_ranks = p, .num_chunks = v, .num_microbatches = m};
        expect_peaks("looped-bfs", chunked, [&](int) { return v * m; });
        expect_peaks("interleaved-zb", chunked, [&](int) { return v * p; });
        expect_peaks("interleaved-1f1b", chunked,
                     [&](int rank) { return std::min(v * m, 2 * (p - rank - 1) + (v - 1) * p + 1); });
      }
    }
  }
}

}  // namespace
}  // namespace trireme::schedule
