// Every row of the table of schedules, over many sizes. Its program is valid as an order, valid when lowered
// for both transports, and readable as text. New rows are covered without new tests.

#include "trireme/schedule/schedule_table.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/simulate.h"
#include "trireme/schedule/validate.h"

namespace trireme::schedule {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr Transport kTransports[] = {Transport::kBuffered, Transport::kRendezvous};

std::string test_name(const testing::TestParamInfo<ScheduleRow>& suite) {
  std::string name;
  for (const char c : suite.param.name) {
    if (c != '-') name += c;
  }
  return name;
}

class EverySchedule : public testing::TestWithParam<ScheduleRow> {
 protected:
  /// Nothing for sizes that the schedule rejects, which it must do with a message.
  static std::vector<Program> programs(const std::vector<int>& ranks, const std::vector<int>& microbatches) {
    std::vector<Program> made;
    for (const int p : ranks) {
      for (const int m : microbatches) {
        for (int chunks = 1; chunks <= 3; ++chunks) {
          if (chunks != GetParam().default_chunks && !GetParam().chunks_can_change) continue;
          try {
            made.push_back(make_schedule(GetParam().name,
                                         {.num_ranks = p, .num_chunks = chunks, .num_microbatches = m}));
          } catch (const InvalidArgument& error) {
            EXPECT_THAT(error.what(), AnyOf(HasSubstr("micro-batches"), HasSubstr("number of ranks")));
          }
        }
      }
    }
    return made;
  }
};

TEST_P(EverySchedule, MakesSoundOrders) {
  const std::vector<Program> made = programs({1, 2, 3, 4}, {1, 2, 4, 5, 8});
  EXPECT_GE(made.size(), 3U);
  for (const Program& order : made) {
    EXPECT_EQ(order.name, GetParam().name);
    EXPECT_NO_THROW(validate(order, {.form = Form::kOrder})) << to_csv(order);
  }
}

TEST_P(EverySchedule, IsSoundOverBothTransports) {
  for (const Program& order : programs({1, 2, 3}, {1, 4, 6})) {
    for (const Transport transport : kTransports) {
      const Program step = lower(order, {.transport = transport, .max_unsharded_stages = 2});
      EXPECT_NO_THROW(validate(step, {.transport = transport})) << to_text(transport) << "\n" << to_csv(step);
    }
  }
}

TEST_P(EverySchedule, IsReadBackFromText) {
  for (const Program& order : programs({2, 4}, {8})) {
    const Program step = lower(order, {.transport = Transport::kRendezvous});
    const Program read = parse_csv(to_csv(step));
    EXPECT_EQ(read.ranks, step.ranks);
    EXPECT_EQ(read.num_stages, step.num_stages);
    EXPECT_EQ(read.num_microbatches, step.num_microbatches);
  }
}

TEST_P(EverySchedule, DoesAllWorkInTheSimulatedTime) {
  for (const Program& order : programs({1, 2, 4}, {8})) {
    const Timeline timeline = simulate(order);
    const double share =
        3.0 * order.num_microbatches * order.num_stages / static_cast<double>(order.ranks.size());
    EXPECT_GE(timeline.work, share - 1e-9);
    EXPECT_GE(timeline.cost, timeline.work);
    EXPECT_GE(timeline.makespan, timeline.cost);
  }
}

TEST_P(EverySchedule, CostsTheSameWhenLowered) {
  for (const Program& order : programs({2, 4}, {8})) {
    const Costs costs{.stages = {{2, 1.5, 1}}, .hop = 0.25};
    EXPECT_DOUBLE_EQ(simulate(lower(order), costs).cost, simulate(order, costs).cost);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EverySchedule, testing::ValuesIn(schedules().begin(), schedules().end()),
                         test_name);

TEST(ScheduleTable, SuggestsTheNearestName) {
  EXPECT_THAT([] { find_schedule("1f1"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("unknown schedule '1f1' (did you mean '1f1b'?)")));
}

TEST(ScheduleTable, RejectsInvalidOptions) {
  const auto refused = [](const char* name, const ScheduleOptions& options, const char* reason) {
    EXPECT_THAT([&] { make_schedule(name, options); }, ThrowsMessage<InvalidArgument>(HasSubstr(reason)));
  };
  refused("gpipe", {.num_ranks = 0}, "at least 1 rank and 1 micro-batch, found 0 and 1");
  refused("1f1b", {.num_ranks = 2, .num_chunks = 2, .num_microbatches = 4}, "1 chunk(s) per rank, found 2");
  refused("interleaved-1f1b", {.num_ranks = 4, .num_microbatches = 9}, "do not fill groups of 4");
  refused("dualpipe", {.num_ranks = 3, .num_microbatches = 8}, "even number of ranks");
  refused("dualpipe-v", {.num_ranks = 4, .num_microbatches = 7}, "found 7");
  refused("pipedream-2bw", {.num_ranks = 4, .num_microbatches = 8, .update_every = 2}, "two versions");
  ScheduleOptions three_of_four{.num_ranks = 4, .num_microbatches = 8};
  three_of_four.replicas = {2, 1};
  refused("1f1b-rr", three_of_four, "as many in all");
  refused("zb-1p", {.num_ranks = 4, .num_microbatches = 8, .memory_limit = 0.5}, "raise the limit");
}

TEST(ScheduleTable, RejectsImpossibleSizesWithLimits) {
  constexpr int kMost = std::numeric_limits<int>::max();
  for (const ScheduleRow& row : schedules()) {
    EXPECT_THAT([&] { make_schedule(row.name, {.num_ranks = kMost, .num_microbatches = 1}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("at most 4096")))
        << row.name;
    EXPECT_THAT([&] { make_schedule(row.name, {.num_ranks = 2, .num_microbatches = kMost}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("at most 4000000")))
        << row.name;
    if (!row.chunks_can_change) continue;
    for (const int chunks : {1000000000, kMost}) {
      EXPECT_THAT(
          [&] { make_schedule(row.name, {.num_ranks = 2, .num_chunks = chunks, .num_microbatches = 2}); },
          ThrowsMessage<InvalidArgument>(HasSubstr("at most 4000000")))
          << row.name;
    }
  }
}

}  // namespace
}  // namespace trireme::schedule
