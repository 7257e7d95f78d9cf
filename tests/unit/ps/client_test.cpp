#include "trireme/ps/client.h"

#include <gtest/gtest.h>

#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/error.h"

namespace trireme::ps {
namespace {

TableSpec sums(std::uint64_t num_elements) {
  TableSpec spec;
  spec.name = "sums";
  spec.num_elements = num_elements;
  spec.chunk_elements = 100;
  return spec;
}

ClientOptions worker(WorkerId number, const RealCluster& cluster) {
  return {.worker = number, .host = "here", .coordinator = cluster.address()};
}

TEST(Client, PullsPushesOfTwoWorkersOverSockets) {
  RealCluster cluster(2);
  Client one(worker(0, cluster)), other(worker(1, cluster));
  const TableId table = one.open_table(sums(250));
  EXPECT_EQ(other.open_table(sums(250)), table);
  const std::vector<float> threes(250, 3), fours(250, 4);
  const Pending pushed = one.push(table, threes);
  other.push(table, fours).get();
  pushed.get();
  one.tick();
  other.tick();
  std::vector<float> values(250);
  one.pull(table, values).get();
  EXPECT_EQ(values, std::vector<float>(250, 7));
  EXPECT_EQ(one.clock(), 1u);
  EXPECT_EQ(one.map().servers.size(), 2u);
}

TEST(Client, ContinuesWithOtherServerAfterOneEnds) {
  RealCluster cluster(2);
  Client client(worker(0, cluster));
  const TableId table = client.open_table(sums(1600));
  const std::vector<float> ones(1600, 1);
  client.push(table, ones).get();
  cluster.end_server(1);
  std::vector<float> values(1600);
  client.push_pull(table, ones, values).get();
  EXPECT_EQ(values, std::vector<float>(1600, 2));
}

TEST(Client, PushesAndPullsRowsByKey) {
  RealCluster cluster(2);
  Client one(worker(0, cluster)), other(worker(1, cluster));
  TableSpec spec;
  spec.name = "rows";
  spec.kind = TableKind::kSparse;
  spec.rows.elements = 2;
  const TableId table = one.open_table(spec);
  EXPECT_EQ(other.open_table(spec), table);
  // More keys than one message to a partition holds.
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 0; key < 400'000; ++key) keys.push_back(key * key);
  const Pending pushed = one.push_rows(table, keys, std::vector<float>(2 * keys.size(), 3));
  other.assign_rows(table, std::vector<std::uint64_t>{7}, std::vector<float>{5, 6}).get();
  pushed.get();
  one.tick();
  other.tick();
  std::vector<float> values(2 * keys.size());
  other.pull_rows(table, keys, values).get();
  EXPECT_EQ(values, std::vector<float>(2 * keys.size(), 3));
  std::vector<float> row(2);
  one.pull_rows(table, std::vector<std::uint64_t>{7}, row).get();
  EXPECT_EQ(row, (std::vector<float>{5, 6}));
  one.push_pull_rows(table, std::vector<std::uint64_t>{7}, std::vector<float>{1, 2}, row).get();
  EXPECT_EQ(row, (std::vector<float>{6, 8}));
}

TEST(Client, PullsOnlyNewerVersions) {
  RealCluster cluster(1);
  Client client(worker(0, cluster));
  const TableId table = client.open_table(sums(50));
  client.push(table, std::vector<float>(50, 2)).get();
  const Result first = client.pull_chunk(table, 0).get();
  ASSERT_TRUE(first.changed);
  EXPECT_EQ(first.values.size(), 200u);
  EXPECT_FALSE(client.pull_chunk(table, 0, first.version).get().changed);
  client.push(table, std::vector<float>(50, 2)).get();
  EXPECT_TRUE(client.pull_chunk(table, 0, first.version).get().changed);
}

TEST(Client, SaysWhereNobodyAnsweredAndWhy) {
  ClientOptions options = {.worker = 3, .host = "here", .coordinator = "tcp:127.0.0.1:1", .timeout_s = 0.2};
  try {
    const Client client(options);
    FAIL() << "nobody is there";
  } catch (const CommError& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("worker 3: no answer in 0.2 s from the coordinator at tcp:127.0.0.1:1"),
              std::string::npos)
        << said;
    EXPECT_NE(said.find("refused"), std::string::npos) << said;
  }
}

TEST(Client, RejectsWrongSizesAndUnknownTables) {
  RealCluster cluster(1);
  Client client(worker(0, cluster));
  EXPECT_THROW(client.push(77, std::vector<float>(3)).get(), InvalidArgument);
  const TableId table = client.open_table(sums(50));
  EXPECT_THROW(client.push(table, std::vector<float>(51)).get(), InvalidArgument);
  std::vector<float> small(49);
  EXPECT_THROW(client.pull(table, small).get(), InvalidArgument);
  EXPECT_THROW(client.open_table(sums(60)), InvalidArgument);
  std::vector<float> values(50);
  client.pull(table, values).get();  // and the client still works
}

TEST(Client, CloseEndsPendingWaits) {
  RealCluster cluster(2);
  std::optional<Pending> pending;
  {
    Client client(worker(0, cluster));
    pending = client.barrier(/*num_workers=*/2);  // no other worker comes
    EXPECT_FALSE(pending->is_done());
  }
  EXPECT_THROW(pending->get(), CommError);
}

TEST(Client, IsNotCountedAfterItLeaves) {
  RealCluster cluster(1);
  Client client(worker(0, cluster)), other(worker(1, cluster));
  const TableId table = client.open_table(sums(10));
  other.open_table(sums(10));
  other.leave().get();
  EXPECT_THROW(other.push(table, std::vector<float>(10)).get(), CommError);
  client.tick();  // staleness 0: a pull waits only for this worker
  std::vector<float> values(10);
  client.pull(table, values).get();
}

}  // namespace
}  // namespace trireme::ps
