#include "trireme/ps/internal/record_builder.h"

#include <gtest/gtest.h>

#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace {

constexpr WorkerLife kLife = {.worker = 1, .incarnation = 5};

/// The content of a snapshot besides that of tables.
struct Meta {
  WorkerClock min_clock = 0;
  std::map<TableId, TableSpec> tables;
  std::map<WorkerLife, WorkerState> workers;
  ExpectedWorkers expected;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.min_clock, self.tables, self.workers, self.expected);
  }
};

/// A partition that has accepted the first `taken` requests of the worker.
PartitionState state_after(Sequence taken) {
  Meta meta;
  std::get<0>(SequenceWindow::fields(meta.workers[kLife].window)) = taken;
  PartitionState state;
  EXPECT_TRUE(state.install({.version = 1}, wire::Buffer::of(wire::encode(meta))));
  return state;
}

WaitingRequests ticks(std::initializer_list<Sequence> sequences) {
  WaitingRequests waiting;
  for (const Sequence sequence : sequences) {
    Request tick;
    tick.life = kLife;
    tick.sequence = sequence;
    tick.op = RequestOp::kTick;
    waiting[{kLife, sequence}].request = tick;
  }
  return waiting;
}

ClusterMap map_with_the_worker() {
  ClusterMap map;
  map.workers[kLife.worker].life = kLife;
  return map;
}

/// Counting from the first request would take years.
TEST(RecordBuilder, ContinuesAtPositionOfWorker) {
  constexpr Sequence kTaken = Sequence{1} << 50;
  const auto next =
      next_record(state_after(kTaken), map_with_the_worker(), ticks({kTaken + 1, kTaken + 2, kTaken + 4}));
  ASSERT_TRUE(next);
  ASSERT_EQ(next->taken.size(), 2U);
  EXPECT_EQ(next->taken[0].second, kTaken + 1);
  EXPECT_EQ(next->taken[1].second, kTaken + 2);
}

TEST(RecordBuilder, AwaitsMissingRequest) {
  EXPECT_FALSE(next_record(state_after(7), map_with_the_worker(), ticks({9})));
}

}  // namespace
}  // namespace trireme::ps
