// The status of nodes, and the roles that may request it.

#include "trireme/ps/status.h"

#include <gtest/gtest.h>

#include "tests/unit/ps/cluster.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/error.h"
#include "trireme/ps/client.h"
#include "trireme/ps/observer.h"

namespace trireme::ps {
namespace {

TableSpec table_of(std::uint64_t num_elements) {
  TableSpec spec;
  spec.name = "weights";
  spec.num_elements = num_elements;
  spec.chunk_elements = 2;
  spec.staleness = 1;
  spec.optimizer.name = "adagrad";
  return spec;
}

class StatusTest : public testing::Test {
 protected:
  ClusterReport look(Cluster& cluster) {
    report.reset();
    const std::string name = "observer" + std::to_string(++num_looks);
    cluster.simulation.add(name, "observer", [this] {
      return std::make_unique<Observer>(ObserverOptions{.coordinator = "inproc:coordinator"},
                                        [this](const ClusterReport& told) { report = told; });
    });
    cluster.simulation.start(name);
    cluster.simulation.run_until([&] { return report.has_value(); }, 10);
    cluster.simulation.crash(name);
    return report.value_or(ClusterReport{});
  }
  int num_looks = 0;
  std::optional<ClusterReport> report;
};

TEST_F(StatusTest, CountsStateAndRequestsOfServers) {
  Cluster cluster(1, {.num_partitions = 8, .num_replicas = 2, .num_servers = 2, .num_workers = 1});
  const TableId table = cluster.create(0, table_of(16));
  ASSERT_TRUE(cluster.settles(10));
  cluster.wait([&](Done done) { cluster.worker(0).join(table, std::move(done)); });
  cluster.wait(
      [&](Done done) { cluster.worker(0).push(table, floats(std::vector<float>(16, 1)), std::move(done)); });
  std::vector<float> values(16);
  cluster.wait([&](Done done) { cluster.worker(0).pull(table, values, std::move(done)); });

  const ClusterReport seen = look(cluster);
  ASSERT_TRUE(seen.cluster) << seen.trouble;
  EXPECT_EQ(seen.cluster->map_version, cluster.coordinator().map().version);
  EXPECT_EQ(seen.cluster->num_partitions, 8U);
  EXPECT_EQ(seen.cluster->num_workers, 1U);
  ASSERT_EQ(seen.cluster->tables.size(), 1U);
  EXPECT_EQ(seen.cluster->tables[0].name, "weights");
  EXPECT_EQ(seen.cluster->num_not_whole, 0U);
  ASSERT_EQ(seen.servers.size(), 2U);
  HeldStatus sum;
  for (const auto& [id, server] : seen.servers) {
    ASSERT_TRUE(server.status) << server.trouble;
    EXPECT_EQ(server.status->held.primary.partitions + server.status->held.backup.partitions, 8U);
    sum += server.status->held;
  }
  EXPECT_EQ(sum.primary.partitions, 8U);
  EXPECT_EQ(sum.backup.partitions, 8U);
  EXPECT_EQ(sum.elements, 2U * 16U) << "with the copies";
  EXPECT_EQ(sum.bytes, 2U * 16U * 2 * sizeof(float)) << "with the optimizer's state";
  EXPECT_EQ(sum.counts.pushes, 8U) << "one for each chunk";
  EXPECT_EQ(sum.counts.push_bytes, 16U * sizeof(float));
  EXPECT_EQ(sum.counts.pulls, 8U);
  EXPECT_EQ(sum.counts.pull_bytes, 16U * sizeof(float));
  EXPECT_EQ(sum.counts.staleness.count(), 8U);
  EXPECT_GT(sum.counts.records, 0U);
  EXPECT_EQ(sum.counts.requests_per_record.count(), sum.counts.records);
  EXPECT_GE(sum.counts.requests_per_record.sum, 8U);
}

TEST_F(StatusTest, ReportsAgeOfPullsAndWaits) {
  Cluster cluster(2, {.num_partitions = 1, .num_replicas = 1, .num_servers = 1, .num_workers = 2});
  const TableId table = cluster.create(0, table_of(2));
  ASSERT_TRUE(cluster.settles(10));
  for (int i = 0; i < 2; ++i)
    cluster.wait([&](Done done) { cluster.worker(i).join(table, std::move(done)); });
  cluster.worker(0).tick();
  cluster.wait([&](Done done) { cluster.worker(0).pull_chunk(table, 0, 0, std::move(done)); });
  cluster.worker(0).tick();
  cluster.worker(0).pull_chunk(table, 0, 0, [](const Result&) {});  // two steps ahead, and one is allowed
  cluster.simulation.run_for(1);
  const HeldStatus held = look(cluster).servers.at(1).status.value().held;
  EXPECT_EQ(held.parked_pulls, 1U);
  EXPECT_EQ(held.counts.staleness.buckets[0], 0U);
  EXPECT_EQ(held.counts.staleness.buckets[1], 1U);
  EXPECT_EQ(held.counts.staleness.sum, 1U);
}

TEST_F(StatusTest, ReportsLagOfLastBackupInChain) {
  Cluster cluster(4, {.num_partitions = 1, .num_replicas = 2, .num_servers = 2, .num_workers = 1});
  const TableId table = cluster.create(0, table_of(2));
  ASSERT_TRUE(cluster.settles(10));
  const auto push = [&](Done done) {
    cluster.worker(0).push_chunk(table, 0, floats({1, 1}), std::move(done));
  };
  EXPECT_EQ(cluster.wait(push).error, ErrorKind::kNone);
  const std::vector<ServerId> chain = cluster.coordinator().map().partitions[0].chain;
  const std::string last = cluster.coordinator().map().server(chain[1])->name;
  const auto lacks = [&] { return look(cluster).servers.at(chain[0]).status.value().held.lag[chain[1]]; };
  EXPECT_EQ(lacks(), 0U);
  cluster.simulation.freeze(last);
  int num_answered = 0;
  for (int i = 0; i < 3; ++i) {  // each is a record of its own
    push([&](const Result&) { ++num_answered; });
    cluster.simulation.run_for(0.05);
  }
  EXPECT_EQ(lacks(), 3U);
  EXPECT_EQ(num_answered, 0);
  cluster.simulation.thaw(last);
  ASSERT_TRUE(cluster.simulation.run_until([&] { return num_answered == 3; }, 60));
  ASSERT_TRUE(cluster.settles(60));
  cluster.simulation.run_for(1);
  for (const auto& [id, server] : look(cluster).servers) {
    for (const auto& [next, count] : server.status.value().held.lag) EXPECT_EQ(count, 0U);
  }
}

TEST_F(StatusTest, NamesDegradedPartitionsAndSilentServers) {
  Cluster cluster(3, {.num_partitions = 8, .num_replicas = 2, .num_servers = 3, .num_workers = 1});
  ASSERT_TRUE(cluster.settles(10));
  cluster.simulation.freeze("server2");
  const ClusterReport frozen = look(cluster);
  int num_silent = 0;
  for (const auto& [id, server] : frozen.servers) num_silent += server.status ? 0 : 1;
  EXPECT_EQ(num_silent, 1) << "it was not known to be down yet, and is asked";
  cluster.simulation.crash("server2");
  ASSERT_TRUE(
      cluster.simulation.run_until([&] { return cluster.coordinator().status().num_not_whole > 0; }, 20));
  EXPECT_FALSE(cluster.coordinator().status().not_whole.empty());
  ASSERT_TRUE(cluster.settles(60));
  EXPECT_EQ(cluster.coordinator().status().num_not_whole, 0U) << "copies have been made";
  EXPECT_GT(cluster.coordinator().status().takeovers, 0U);
  cluster.simulation.crash("server0");
  cluster.simulation.crash("server1");
  cluster.simulation.run_for(70);
  const ClusterReport lost = look(cluster);
  ASSERT_TRUE(lost.cluster);
  EXPECT_EQ(lost.cluster->num_lost, 8U);
  EXPECT_EQ(lost.cluster->lost.size(), 8U);
  EXPECT_TRUE(lost.servers.empty());
}

TEST(StatusOf, SizeIsIndependentOfTheMap) {
  ClusterMap map;
  map.num_replicas = 2;
  for (ServerId id = 1; id <= 1000; ++id) {
    map.servers[id] = {.id = id, .name = "s" + std::to_string(id), .host = {}, .address = {}};
    map.workers[id] = {{id, id}, 1};
    map.tables[id].id = id;
  }
  map.partitions.resize(4096, {.epoch = 1, .chain = {1}});
  for (PartitionId id = 0; id < 1000; ++id) map.partitions[id].lost = true;
  const ClusterStatus status = status_of(map);
  EXPECT_EQ(status.num_servers, 1000U);
  EXPECT_EQ(status.num_lost, 1000U);
  EXPECT_EQ(status.num_not_whole, 3096U);
  for (const std::size_t listed : {status.servers.size(), status.workers.size(), status.tables.size(),
                                   status.lost.size(), status.not_whole.size()})
    EXPECT_EQ(listed, kMostListed);
  EXPECT_LT(wire::encode(status).size(), 128U << 10);
}

/// The role "observer": any message except its requests is rejected without effect.
TEST_F(StatusTest, AnObserverMayAskForNothingElse) {
  class Meddler final : public wire::Node {
   public:
    void on_start(wire::Surroundings& surroundings) override {
      surroundings_ = &surroundings;
      for (const char* name : {"inproc:server0", "inproc:coordinator"}) surroundings.network().connect(name);
    }
    void on_connected(wire::ConnectionId connection, const wire::PeerIdentity&) override {
      CreateTable create;
      create.spec = table_of(4);
      surroundings_->network().send(connection, message_of(create));
      surroundings_->network().send(connection, message_of(Pull{.life = {}, .table = 1}));
      surroundings_->network().send(connection, message_of(Request{.life = {}, .op = RequestOp::kJoin}));
    }
    void on_message(wire::ConnectionId, wire::Message) override { ++num_answers; }
    void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
    void on_timer(wire::TimerId) override {}
    int num_answers = 0;

   private:
    wire::Surroundings* surroundings_ = nullptr;
  };
  Cluster cluster(4);
  ASSERT_TRUE(cluster.settles(10));
  cluster.simulation.add("meddler", "observer", [] { return std::make_unique<Meddler>(); });
  cluster.simulation.start("meddler");
  cluster.simulation.run_for(2);
  EXPECT_EQ(cluster.simulation.node<Meddler>("meddler").num_answers, 0);
  EXPECT_TRUE(cluster.coordinator().map().tables.empty());
  EXPECT_EQ(cluster.coordinator().status().rejected_messages, 1U) << "then its connection is closed";
  EXPECT_EQ(cluster.server(0).counts().rejected, 3U);
}

TEST(Observer, SeesServersWithOwnerThreadsOverSockets) {
  RealCluster cluster(2);
  Client client({.worker = 0, .host = "here", .coordinator = cluster.address()});
  const TableId table = client.open_table(table_of(16));
  client.push(table, std::vector<float>(16, 1)).get();
  const ClusterReport report = look_at_cluster({.coordinator = cluster.address(), .timeout_s = 60});
  ASSERT_EQ(report.servers.size(), 2U);
  HeldStatus sum;
  for (const auto& [id, server] : report.servers) {
    ASSERT_TRUE(server.status) << server.trouble;
    sum += server.status->held;
  }
  EXPECT_EQ(sum.primary.partitions, 16U);
  EXPECT_EQ(sum.counts.pushes, 8U);
}

TEST(Observer, SaysWhereNobodyAnswers) {
  try {
    look_at_cluster({.coordinator = "tcp:127.0.0.1:1", .timeout_s = 60});
    FAIL() << "nobody is there";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("no status from the coordinator at tcp:127.0.0.1:1: "),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme::ps
