#include "trireme/schedule/simulate.h"

#include <gmock/gmock.h>

#include <limits>

#include "trireme/base/error.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Costs costs_of(StageCost cost) {
  Costs costs;
  costs.stages = {cost};
  return costs;
}

TEST(Simulate, TwoStagesHaveTimesByHand) {
  Costs costs = costs_of({.forward = 2, .backward_input = 3, .backward_weight = 1});
  costs.hop = 0.5;
  const Timeline timeline = simulate(parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), costs);
  const auto expect_span = [&](std::size_t rank, std::size_t i, double start, double end) {
    EXPECT_DOUBLE_EQ(timeline.spans[rank][i].start, start) << rank << " " << i;
    EXPECT_DOUBLE_EQ(timeline.spans[rank][i].end, end) << rank << " " << i;
  };
  expect_span(0, 0, 0, 2);
  expect_span(0, 1, 2, 4);
  expect_span(1, 0, 2.5, 4.5);
  expect_span(1, 1, 4.5, 8.5);
  expect_span(1, 2, 8.5, 10.5);
  expect_span(1, 3, 10.5, 14.5);
  expect_span(0, 2, 9, 13);
  expect_span(0, 3, 15, 19);
  EXPECT_DOUBLE_EQ(timeline.cost, 19);
  EXPECT_DOUBLE_EQ(timeline.makespan, 19);
  EXPECT_DOUBLE_EQ(timeline.work, 12);
  EXPECT_DOUBLE_EQ(timeline.bubble_rate, 7.0 / 19);
  EXPECT_DOUBLE_EQ(timeline.bubble_to_work, 7.0 / 12);
}

TEST(Simulate, CostIsLongestTimeOfRank) {
  const Timeline timeline = simulate(make_schedule("zb-h2", {.num_ranks = 4, .num_microbatches = 8}));
  EXPECT_DOUBLE_EQ(timeline.cost, 24);
  EXPECT_DOUBLE_EQ(timeline.makespan, 27);
}

// Makespans of the schedules with all times 1, computed from the published orders.
TEST(Simulate, FourRanksTakeKnownTimes) {
  const auto makespan = [](const char* name) {
    return simulate(make_schedule(name, {.num_ranks = 4, .num_microbatches = 8})).makespan;
  };
  EXPECT_DOUBLE_EQ(makespan("gpipe"), 33);
  EXPECT_DOUBLE_EQ(makespan("1f1b"), 33);
  EXPECT_DOUBLE_EQ(makespan("interleaved-1f1b"), 57);
  EXPECT_DOUBLE_EQ(makespan("zb-h1"), 27);
  EXPECT_DOUBLE_EQ(makespan("zb-v"), 51);
  EXPECT_DOUBLE_EQ(makespan("dualpipe"), 26);
  EXPECT_DOUBLE_EQ(makespan("dualpipe-v"), 54);
}

TEST(Simulate, BandwidthSerializesMessagesOfLink) {
  Costs costs = costs_of({.forward = 1, .backward_input = 1, .backward_weight = 0});
  costs.message_bytes = 300;
  costs.bandwidth = 100;
  costs.hop = 1;
  const Timeline timeline = simulate(parse_csv("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"), costs);
  EXPECT_DOUBLE_EQ(timeline.spans[1][0].start, 5);  // 1 + 3 + 1
  EXPECT_DOUBLE_EQ(timeline.spans[1][1].start, 8);  // the second waits for the first: 4 + 3 + 1
  EXPECT_DOUBLE_EQ(timeline.spans[0][2].start, 14);
}

TEST(Simulate, StagesMayCostDifferently) {
  Costs costs;
  costs.stages = {{1, 1, 0}, {5, 5, 0}};
  const Timeline timeline = simulate(parse_csv("0F0,0B0\n1F0,1B0\n"), costs);
  EXPECT_DOUBLE_EQ(timeline.cost, 12);
  EXPECT_DOUBLE_EQ(timeline.work, 10);
}

TEST(Simulate, OverlappedPairTakesItsShare) {
  const Program program = parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  Costs costs;
  costs.overlap = 0.5;
  EXPECT_DOUBLE_EQ(simulate(program).cost, 6);
  EXPECT_DOUBLE_EQ(simulate(program, costs).cost, 4.5);
}

TEST(Simulate, TransfersLastUntilTheMessageIsThere) {
  Costs costs;
  costs.hop = 2;
  const Timeline timeline =
      simulate(parse_csv("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), costs);
  EXPECT_DOUBLE_EQ(timeline.spans[0][1].start, 1);
  EXPECT_DOUBLE_EQ(timeline.spans[0][1].end, 3);
  EXPECT_DOUBLE_EQ(timeline.spans[1][0].start, 0);
  EXPECT_DOUBLE_EQ(timeline.spans[1][0].end, 3);
}

TEST(Simulate, ActivationsAreHeldUntilTheirLastUse) {
  Costs costs;
  costs.kept_for_weight = 0.25;
  const Timeline timeline = simulate(parse_csv("0F0,0I0,0F1,0I1,0F2,0W0,0I2,0W1,0W2\n"), costs);
  EXPECT_THAT(timeline.peak_activations, ElementsAre(3));
  EXPECT_THAT(timeline.peak_memory, ElementsAre(1.5));
}

TEST(Simulate, CountsVersionsOfWeights) {
  const ScheduleOptions options{.num_ranks = 4, .num_microbatches = 16};
  EXPECT_THAT(simulate(make_schedule("1f1b", options)).peak_weight_versions, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(simulate(make_schedule("pipedream", options)).peak_weight_versions, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(simulate(make_schedule("pipedream-2bw", options)).peak_weight_versions,
              ElementsAre(2, 2, 2, 2));
  ScheduleOptions vertical = options;
  vertical.vertical_sync = true;
  EXPECT_THAT(simulate(make_schedule("pipedream", vertical)).peak_weight_versions, ElementsAre(4, 4, 4, 4));
}

TEST(Simulate, ReplicasOfAStageShareItsWork) {
  ScheduleOptions options{.num_ranks = 4, .num_microbatches = 12};
  options.replicas = {3, 1};
  Costs costs;
  costs.stages = {{3, 3, 3}, {1, 1, 1}};
  const Timeline timeline = simulate(make_schedule("1f1b-rr", options), costs);
  EXPECT_THAT(timeline.peak_weight_versions, ElementsAre(2, 2, 2, 1));  // ceil(4 / 3) in flight per replica
  EXPECT_DOUBLE_EQ(timeline.work, 36);
  EXPECT_LE(timeline.cost, 48);
}

Span span_of(const Program& program, const Timeline& timeline, std::size_t rank, std::string_view action) {
  for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
    if (to_text(program.ranks[rank][i]) == action) return timeline.spans[rank][i];
  }
  ADD_FAILURE() << action << " is missing";
  return {};
}

// F 1, B 4, twice: the last backward runs from 6 to 10. Four buckets of 2 are ready at 7, 8, 9 and 10, where
// REDUCE_GRAD is.
TEST(Simulate, ReductionOverlapsBackwardAndPrecedesUpdate) {
  const Program program = data_parallel(2);
  Costs costs = costs_of({.forward = 1, .backward_input = 2, .backward_weight = 2, .reduce = 8, .update = 3});
  costs.buckets = 4;
  const Timeline timeline = simulate(program, costs);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "0REDUCE_GRAD").end, 15);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "0STEP").start, 15);
  EXPECT_DOUBLE_EQ(timeline.cost, 18);
  EXPECT_DOUBLE_EQ(timeline.work, 13) << "what goes on beside occupies no rank";
  costs.buckets = 1;
  EXPECT_DOUBLE_EQ(simulate(program, costs).cost, 21) << "one bucket starts where the backward ends";
  costs.stages.front().reduce = 2;
  costs.buckets = 4;
  EXPECT_DOUBLE_EQ(simulate(program, costs).cost, 13.5) << "only the last bucket is not hidden";
}

TEST(Simulate, OtherStagesContinueDuringReduction) {
  const Program program = parse_csv("0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD,0STEP,1STEP\n");
  Costs costs = costs_of({.forward = 1, .backward_input = 1, .backward_weight = 1, .reduce = 5});
  const Timeline timeline = simulate(program, costs);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "0B0").end, 6);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "1REDUCE_GRAD").end, 9);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "0REDUCE_GRAD").end, 14) << "one after the other";
}

TEST(Simulate, UpdateAwaitsReductionOfAllHolders) {
  Program program = parse_csv("0F0,0B0,0REDUCE_GRAD,0STEP\n0F1,0F2,0B1,0B2,0REDUCE_GRAD,0STEP\n");
  program.replicas = {{0, 1}};
  Costs costs = costs_of({.forward = 1, .backward_input = 1, .backward_weight = 1, .reduce = 1});
  const Timeline timeline = simulate(program, costs);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "0REDUCE_GRAD").end, 4);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "0STEP").start, 7);
}

TEST(Simulate, WeightGatheringRunsAheadOfUse) {
  const Program program = parse_csv(
      "0UNSHARD,1UNSHARD,0F0,0RESHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD,"
      "0REDUCE_GRAD,1REDUCE_GRAD,0STEP,1STEP\n");
  Costs costs = costs_of({.forward = 2, .backward_input = 2, .backward_weight = 2, .unshard = 3});
  const Timeline timeline = simulate(program, costs);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "0F0").start, 3);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "1F0").start, 6) << "gathered from 3 on, beside 0F0";
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, "0B0").start, 15) << "its gathering began at 12";
}

TEST(Simulate, ExchangesOnCoreAddToStep) {
  Costs costs = costs_of({.forward = 2, .backward_input = 4, .backward_weight = 0, .reduce = 3, .update = 1});
  costs.buckets = 4;
  const Program program = data_parallel(1);
  // Three quarters of the reduction run concurrently with the backward, the last quarter after it.
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 2 + 4 + 0.75 + 1);
  EXPECT_THAT(simulate(program, costs).exchanged, ElementsAre(0.75));
  costs.share_of_core = 1;
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 2 + 4 + 3 + 1);
  EXPECT_THAT(simulate(program, costs).exchanged, ElementsAre(3));
}

TEST(Simulate, MessagesOnCoreDelayTheirSender) {
  Costs costs;
  costs.message_bytes = 10;
  costs.bandwidth = 20;
  const Program program = parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_DOUBLE_EQ(simulate(program, costs).spans[0][1].start, 1);
  costs.share_of_core = 1;
  EXPECT_DOUBLE_EQ(simulate(program, costs).spans[0][1].start, 1.5);
}

TEST(Simulate, RejectsInvalidCostsAndDeadlocks) {
  const Program order = make_schedule("1f1b", {.num_ranks = 2, .num_microbatches = 2});
  Costs three;
  three.stages = {{}, {}, {}};
  EXPECT_THAT([&] { simulate(order, three); },
              ThrowsMessage<InvalidArgument>(HasSubstr("costs are for 3 stages, the program '1f1b' has 2")));
  EXPECT_THAT([&] { simulate(order, costs_of({.forward = -1})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("costs are 0 to 1e+100; found -1 for a forward")));
  EXPECT_THAT([] { simulate(parse_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("waits for itself")));
}

TEST(Simulate, RejectsNonFiniteCostsWithLimits) {
  const Program program = make_schedule("1f1b", {.num_ranks = 2, .num_microbatches = 2});
  const auto refused = [&](const Costs& costs, const char* message) {
    EXPECT_THAT([&] { simulate(program, costs); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(message)));
  };
  refused({.stages = {{.forward = 1e308}}}, "costs are 0 to 1e+100; found 1e+308 for a forward");
  refused({.hop = std::numeric_limits<double>::infinity()}, "found inf for a hop");
  refused({.message_bytes = 1, .bandwidth = 1e-300}, "a bandwidth is at least 1e-100");
  refused({.buckets = std::numeric_limits<int>::max()}, "1 to 1000000 buckets");
  const Timeline most = simulate(program, {.stages = {{.forward = 1e100}}, .hop = 1e100});
  EXPECT_GT(most.bubble_rate, 0);
  EXPECT_LT(most.bubble_rate, 1);
}

}  // namespace
}  // namespace trireme::schedule
