// The number of messages at the end of a step.

#include <gtest/gtest.h>

#include "tests/unit/ps/cluster.h"

namespace trireme::ps {
namespace {

/// For any use of a sparse table, the end of a step is one message to each primary and not to each partition.
TEST(Ticks, StepSendsOneMessagePerPrimary) {
  constexpr int kServers = 3, kSteps = 10;
  Cluster cluster(3, {.num_partitions = 64, .num_servers = kServers, .num_workers = 1});
  TableSpec spec;
  spec.name = "rows";
  spec.kind = TableKind::kSparse;
  spec.rows.elements = 2;
  const TableId table = cluster.create(0, spec);
  ASSERT_TRUE(cluster.settles(10));
  const Result joined = cluster.wait([&](Done done) { cluster.worker(0).join(table, std::move(done)); });
  ASSERT_EQ(joined.error, ErrorKind::kNone);
  cluster.simulation.run_for(1);
  const auto num = [&](MessageKind kind) {
    return cluster.simulation.num_messages(static_cast<std::uint16_t>(kind));
  };
  const std::uint64_t ticks = num(MessageKind::kTicks), requests = num(MessageKind::kRequest),
                      replies = num(MessageKind::kReplies) + num(MessageKind::kReply);
  const std::uint64_t key = 5;
  std::vector<float> row(2);
  for (int step = 0; step < kSteps; ++step) {
    cluster.worker(0).tick();
    const Result pulled = cluster.wait(
        [&](Done done) { cluster.worker(0).pull_rows(table, std::span(&key, 1), row, std::move(done)); });
    EXPECT_EQ(pulled.error, ErrorKind::kNone);
    EXPECT_GE(pulled.min_clock, static_cast<WorkerClock>(step + 1));
    cluster.simulation.run_for(0.01);
  }
  EXPECT_EQ(num(MessageKind::kTicks) - ticks, kServers * kSteps);
  EXPECT_EQ(num(MessageKind::kRequest), requests);
  const std::uint64_t answers = num(MessageKind::kReplies) + num(MessageKind::kReply) - replies;
  EXPECT_LT(answers, 64 * kSteps / 2) << "partitions whose records are stable together answer together";
  RecordProperty("replies_per_step", std::to_string(static_cast<double>(answers) / kSteps));
}

}  // namespace
}  // namespace trireme::ps
