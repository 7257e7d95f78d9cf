// The background copy to a new backup stays below its rate limit and blocks no other request.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/ps/cluster.h"

namespace trireme::ps {
namespace {

TEST(CopyLimit, BoundsBytesPerSecondWhilePushesContinue) {
  constexpr double kLimit = 1e6;
  constexpr std::uint64_t kChunks = 64;
  constexpr std::uint32_t kElements = 16 << 10;  // 64 KiB
  constexpr double kPart = kElements * sizeof(float);
  Cluster cluster(1, {.num_partitions = 8,
                      .num_replicas = 2,
                      .num_servers = 2,
                      .num_workers = 1,
                      .copy_bytes_per_s = kLimit});
  TableSpec spec;
  spec.name = "large";
  spec.num_elements = kChunks * kElements;
  spec.chunk_elements = kElements;
  const TableId table = cluster.create(0, spec);
  ASSERT_TRUE(cluster.settles(10));
  const std::vector<float> ones(spec.num_elements, 1);
  ASSERT_EQ(
      cluster.wait([&](Done done) { cluster.worker(0).push(table, floats(ones), std::move(done)); }).error,
      ErrorKind::kNone);
  auto& simulation = cluster.simulation;
  simulation.crash("server1");
  simulation.run_for(5);
  simulation.start("server1");
  ASSERT_TRUE(simulation.run_until([&] { return cluster.server(0).counts().bytes_copied > 0; }, 10));

  const double began_s = simulation.now_s();
  double longest_s = 0, asked_s = 0;
  std::uint64_t num_pushes = 0;
  bool is_answered = true;
  const auto push = [&] {
    is_answered = false;
    asked_s = simulation.now_s();
    const wire::Buffer one = floats(std::vector<float>(kElements, 1));
    cluster.worker(0).push_chunk(table, num_pushes++ % kChunks, one, [&](const Result& result) {
      EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
      longest_s = std::max(longest_s, simulation.now_s() - asked_s);
      is_answered = true;
    });
  };
  while (!cluster.coordinator().is_settled() && simulation.now_s() < began_s + 600) {
    if (is_answered) push();
    simulation.run_for(0.01);
    // A saved-up budget, plus the excess of the last part.
    const double most = kLimit * (simulation.now_s() - began_s) + kLimit / 4 + 2 * kPart;
    ASSERT_LE(static_cast<double>(cluster.server(0).counts().bytes_copied), most)
        << "after " << simulation.now_s() - began_s << " s";
  }
  ASSERT_TRUE(cluster.settles(60));
  const auto copied = static_cast<double>(cluster.server(0).counts().bytes_copied);
  EXPECT_GE(copied, kChunks * kPart);
  EXPECT_GE(simulation.now_s() - began_s, kChunks * kPart / kLimit - 1);
  EXPECT_GT(num_pushes, 100U);
  EXPECT_LT(longest_s, 0.5) << "of virtual time: roles change meanwhile, and nothing waits for copies";
}

/// A slow copy over a slow link is not resent repeatedly, because that would fill the queue.
TEST(CopyLimit, PendingCopiesAreResentLessOften) {
  Cluster cluster(1, {.num_partitions = 1, .num_servers = 2, .num_workers = 1});
  TableSpec spec;
  spec.name = "rows";
  spec.num_elements = 1 << 20;
  spec.chunk_elements = 256 << 10;
  const TableId table = cluster.create(0, spec);
  ASSERT_TRUE(cluster.settles(10));
  const std::vector<float> ones(spec.num_elements, 1);
  ASSERT_EQ(
      cluster.wait([&](Done done) { cluster.worker(0).push(table, floats(ones), std::move(done)); }).error,
      ErrorKind::kNone);
  auto& simulation = cluster.simulation;
  simulation.crash("server1");
  simulation.run_for(5);
  simulation.start("server1");
  const auto num_parts = [&] {
    return simulation.num_messages(static_cast<std::uint16_t>(MessageKind::kSnapshotPart));
  };
  ASSERT_TRUE(simulation.run_until([&] { return num_parts() > 0; }, 10));
  simulation.cut("server0", "server1");  // messages are held back and not lost
  simulation.run_for(6);
  EXPECT_LE(num_parts(), 8U) << "four of a mebibyte take four seconds at a mebibyte a second";
  simulation.heal_all();
  ASSERT_TRUE(cluster.settles(60));
  std::vector<float> values(spec.num_elements);
  simulation.crash("server0");
  ASSERT_EQ(cluster.wait([&](Done done) { cluster.worker(0).pull(table, values, std::move(done)); }).error,
            ErrorKind::kNone);
  EXPECT_EQ(values, ones);
}

}  // namespace
}  // namespace trireme::ps
