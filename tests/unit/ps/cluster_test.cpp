// Whole clusters: each test checks one guarantee.

#include "tests/unit/ps/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace trireme::ps {
namespace {

constexpr std::size_t kElements = 20;

TableSpec small_table(std::uint32_t staleness = kAsynchronous) {
  TableSpec spec;
  spec.name = "weights";
  spec.num_elements = kElements;
  spec.chunk_elements = 4;
  spec.staleness = staleness;
  return spec;
}

wire::Buffer all(float value) { return floats(std::vector<float>(kElements, value)); }

class ClusterTest : public testing::Test {
 protected:
  void begin(const TableSpec& spec, ClusterOptions options = {}) {
    cluster.emplace(7, options);
    table = cluster->create(0, spec);
    ASSERT_NE(table, 0U);
    ASSERT_TRUE(cluster->settles(10));
  }
  Result push(int worker, const wire::Buffer& values) {
    return cluster->wait([&](Done done) { cluster->worker(worker).push(table, values, std::move(done)); });
  }
  std::vector<float> pull(int worker) {
    std::vector<float> values(kElements);
    const Result pulled =
        cluster->wait([&](Done done) { cluster->worker(worker).pull(table, values, std::move(done)); });
    EXPECT_EQ(pulled.error, ErrorKind::kNone) << pulled.message;
    return values;
  }
  /// The primary server of the first chunk.
  std::string primary() {
    const ClusterMap& map = cluster->coordinator().map();
    return map.server(map.partitions[map.partition_of(table, 0)].primary())->name;
  }

  std::optional<Cluster> cluster;
  TableId table = 0;
};

TEST_F(ClusterTest, AddsPushesOfWorkers) {
  begin(small_table());
  for (const float value : {1.0F, 2.0F, 3.0F}) EXPECT_EQ(push(0, all(value)).error, ErrorKind::kNone);
  EXPECT_EQ(push(1, all(10)).error, ErrorKind::kNone);
  EXPECT_EQ(pull(0), std::vector<float>(kElements, 16));
}

TEST_F(ClusterTest, OfOneServerWorks) {
  begin(small_table(), {.num_partitions = 4, .num_replicas = 2, .num_servers = 1});
  EXPECT_EQ(push(0, all(1)).error, ErrorKind::kNone);
  EXPECT_EQ(pull(1), std::vector<float>(kElements, 1));
}

TEST_F(ClusterTest, AssignsValuesBeforeFirstPush) {
  begin(small_table());
  const Result assigned =
      cluster->wait([&](Done done) { cluster->worker(0).assign(table, all(5), std::move(done)); });
  EXPECT_EQ(assigned.error, ErrorKind::kNone);
  std::vector<float> values(kElements);
  const Result both =
      cluster->wait([&](Done done) { cluster->worker(0).push_pull(table, all(2), values, std::move(done)); });
  EXPECT_EQ(both.error, ErrorKind::kNone);
  EXPECT_EQ(values, std::vector<float>(kElements, 7));
}

TEST_F(ClusterTest, SendsValuesOnlyWhereTheyAreNewer) {
  begin(small_table());
  push(0, all(1));
  const auto pull_chunk = [&](Version newer_than) {
    return cluster->wait(
        [&](Done done) { cluster->worker(0).pull_chunk(table, 0, newer_than, std::move(done)); });
  };
  const Result first = pull_chunk(0);
  EXPECT_TRUE(first.changed);
  const Result second = pull_chunk(first.version);
  EXPECT_FALSE(second.changed);
  EXPECT_TRUE(second.values.empty());
  push(0, all(1));
  EXPECT_TRUE(pull_chunk(first.version).changed);
}

TEST_F(ClusterTest, GoesOnWithoutItsCoordinator) {
  begin(small_table());
  push(0, all(1));
  const MapVersion version = cluster->coordinator().map().version;
  cluster->simulation.crash("coordinator");
  cluster->simulation.run_for(30);
  EXPECT_EQ(push(0, all(2)).error, ErrorKind::kNone);
  EXPECT_EQ(pull(0), std::vector<float>(kElements, 3));
  cluster->simulation.start("coordinator");
  EXPECT_GE(cluster->coordinator().map().version, version);
  ASSERT_TRUE(cluster->settles(10));
  EXPECT_EQ(push(1, all(2)).error, ErrorKind::kNone);
  EXPECT_EQ(pull(1), std::vector<float>(kElements, 5));
}

TEST_F(ClusterTest, ReplacesDeadPrimaryWithoutMoves) {
  begin(small_table());
  push(0, all(1));
  const std::string dead = primary();
  std::uint64_t copied = 0;
  for (int i = 0; i < 3; ++i) copied += cluster->server(i).counts().bytes_copied;
  EXPECT_EQ(copied, 0U);
  cluster->simulation.crash(dead);
  const double before_s = cluster->simulation.now_s();
  EXPECT_EQ(push(0, all(2)).error, ErrorKind::kNone);
  // In virtual time: detected by the closed connection and not by the lease.
  EXPECT_LT(cluster->simulation.now_s() - before_s, 1.0);
  EXPECT_EQ(pull(0), std::vector<float>(kElements, 3));
}

TEST_F(ClusterTest, NoticesServerThatDiedWithoutCoordinator) {
  begin(small_table());
  push(0, all(1));
  const std::string dead = primary();
  cluster->simulation.crash("coordinator");
  cluster->simulation.crash(dead);
  cluster->simulation.start("coordinator");
  const double before_s = cluster->simulation.now_s();
  EXPECT_EQ(push(0, all(2)).error, ErrorKind::kNone);
  // In virtual time: no server answers at the address in the map.
  EXPECT_LT(cluster->simulation.now_s() - before_s, 1.0);
  EXPECT_EQ(pull(0), std::vector<float>(kElements, 3));
}

TEST_F(ClusterTest, NamesVersionsLostWithAllReplicas) {
  begin(small_table());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(push(0, all(1)).error, ErrorKind::kNone);
  std::map<PartitionId, Version> versions;
  for (PartitionId id = 0; id < cluster->options().num_partitions; ++id) {
    for (int i = 0; i < 3; ++i) versions[id] = std::max(versions[id], cluster->server(i).report(id).version);
  }
  for (int i = 0; i < 3; ++i) cluster->simulation.crash(Cluster::server_name(i));
  for (int i = 0; i < 3; ++i) cluster->simulation.start(Cluster::server_name(i));
  const Result lost = push(0, all(1));
  EXPECT_EQ(lost.error, ErrorKind::kDataLoss);
  unsigned partition = 0;
  ASSERT_EQ(std::sscanf(lost.message.c_str(), "partition %u", &partition), 1) << lost.message;
  EXPECT_GE(versions[partition], 3U) << "three pushes, one after the other";
  EXPECT_THAT(lost.message, testing::HasSubstr("versions 1 to " + std::to_string(versions[partition]) + " "));
  std::vector<float> values(kElements);
  const Result pulled =
      cluster->wait([&](Done done) { cluster->worker(1).pull(table, values, std::move(done)); });
  EXPECT_EQ(pulled.error, ErrorKind::kDataLoss);
  EXPECT_THAT(pulled.message, testing::HasSubstr("checkpoint"));
}

TEST_F(ClusterTest, ReportsTimeoutAndAppliesPushOnce) {
  begin(small_table());
  push(0, all(1));
  for (int i = 0; i < 3; ++i) cluster->simulation.freeze(Cluster::server_name(i));
  const Result late = push(0, all(2));
  EXPECT_EQ(late.error, ErrorKind::kTimeout);
  EXPECT_THAT(late.message, testing::HasSubstr("worker 0"));
  for (int i = 0; i < 3; ++i) cluster->simulation.thaw(Cluster::server_name(i));
  EXPECT_EQ(push(0, all(4)).error, ErrorKind::kNone);
  EXPECT_EQ(pull(0), std::vector<float>(kElements, 7));
}

TEST_F(ClusterTest, EndsCallAtItsDeadline) {
  begin(small_table());
  for (int i = 0; i < 3; ++i) cluster->simulation.freeze(Cluster::server_name(i));
  std::vector<float> values(kElements);
  std::vector<std::string> told;
  const auto tell = [&](const Result& result) {
    EXPECT_EQ(result.error, ErrorKind::kTimeout);
    told.push_back(result.message);
  };
  ClientNode& worker = cluster->worker(0);
  worker.pull(table, values, tell, {.timeout_s = 1.5});
  worker.push(table, all(1), tell, {.timeout_s = 0.5});
  worker.pull_chunk(table, 0, std::span(values).first(4), tell, {.timeout_s = 2.5});
  worker.push_pull(table, all(2), values, tell, {.timeout_s = 3.5});
  bool is_answered = false;
  worker.pull(table, values, [&](const Result& result) { is_answered = result.error == ErrorKind::kNone; });
  cluster->simulation.run_for(5);
  EXPECT_THAT(told, testing::ElementsAre(testing::HasSubstr("in 0.5 s"), testing::HasSubstr("in 1.5 s"),
                                         testing::HasSubstr("in 2.5 s"), testing::HasSubstr("in 3.5 s")));
  for (int i = 0; i < 3; ++i) cluster->simulation.thaw(Cluster::server_name(i));
  EXPECT_EQ(push(0, all(4)).error, ErrorKind::kNone);
  EXPECT_TRUE(is_answered) << "it has the client's deadline";
  EXPECT_EQ(pull(0), std::vector<float>(kElements, 7)) << "each push was applied, once";
}

TEST_F(ClusterTest, RejectsAccessOutsideTheTable) {
  begin(small_table());
  EXPECT_EQ(push(0, floats({1, 2, 3})).error, ErrorKind::kOutOfRange);
  const Result chunk =
      cluster->wait([&](Done done) { cluster->worker(0).pull_chunk(table, 99, 0, std::move(done)); });
  EXPECT_EQ(chunk.error, ErrorKind::kOutOfRange);
  std::vector<float> few(1);
  const Result narrow =
      cluster->wait([&](Done done) { cluster->worker(0).pull_chunk(table, 0, few, std::move(done)); });
  EXPECT_EQ(narrow.error, ErrorKind::kOutOfRange);
  EXPECT_THAT(narrow.message, testing::HasSubstr("pull of 1 elements of chunk 0"));
  const Result nowhere =
      cluster->wait([&](Done done) { cluster->worker(0).push(table + 1, all(1), std::move(done)); });
  EXPECT_EQ(nowhere.error, ErrorKind::kUnknownTable);
  TableSpec other = small_table();
  other.num_elements = 8;
  const Result again =
      cluster->wait([&](Done done) { cluster->worker(1).create_table(other, std::move(done)); });
  EXPECT_THAT(again.message, testing::HasSubstr("already"));
  EXPECT_EQ(push(0, all(1)).error, ErrorKind::kNone);
}

TEST_F(ClusterTest, HoldsWorkersTogetherAtABarrier) {
  begin(small_table());
  std::vector<int> order;
  cluster->worker(0).barrier(2, [&](const Result&) { order.push_back(0); });
  cluster->simulation.run_for(5);
  EXPECT_TRUE(order.empty());
  cluster->worker(1).barrier(2, [&](const Result&) { order.push_back(1); });
  cluster->simulation.run_for(2);
  EXPECT_EQ(order.size(), 2U);
  // A second barrier, with a coordinator that has forgotten the first.
  cluster->worker(0).barrier(2, [&](const Result&) { order.push_back(2); });
  cluster->simulation.run_for(1);
  cluster->simulation.crash("coordinator");
  cluster->simulation.start("coordinator");
  cluster->simulation.run_for(5);
  EXPECT_EQ(order.size(), 2U);
  cluster->worker(1).barrier(2, [&](const Result&) { order.push_back(3); });
  cluster->simulation.run_for(2);
  EXPECT_EQ(order.size(), 4U);
}

/// The gradients of the first worker are much larger, so that another order of the sum gives other bits.
float gradient(int worker, std::uint64_t step, std::size_t element) {
  Random random(9, worker, step, element);
  const float value = 2 * random.uniform() - 1;
  return worker == 0 ? value * 1e4F : value;
}

TEST_F(ClusterTest, OrderedSumsKeepBitsOverFailure) {
  TableSpec spec = small_table(0);
  spec.apply_at = ApplyAt::kClock;
  spec.optimizer.name = "sgd";
  spec.optimizer.lr = 0.1;
  spec.optimizer.momentum = 0.9;
  begin(spec, {.num_servers = 3, .num_workers = 3});
  constexpr std::uint64_t kSteps = 12;
  for (int worker = 0; worker < 3; ++worker) {
    const Result joined =
        cluster->wait([&](Done done) { cluster->worker(worker).join(table, std::move(done)); });
    ASSERT_EQ(joined.error, ErrorKind::kNone);
  }
  std::vector<std::vector<float>> pulled(3, std::vector<float>(kElements));
  int num_done = 0;
  const std::function<void(int)> step = [&](int worker) {
    ClientNode& client = cluster->worker(worker);
    if (client.clock() == kSteps) {
      ++num_done;
      return;
    }
    std::vector<float> values;
    for (std::size_t i = 0; i < kElements; ++i) values.push_back(gradient(worker, client.clock(), i));
    client.push(table, floats(values),
                [](const Result& result) { EXPECT_EQ(result.error, ErrorKind::kNone); });
    client.tick();
    client.pull(table, pulled[static_cast<std::size_t>(worker)], [&, worker](const Result& result) {
      EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
      const double wait_s = 0.05 * cluster->simulation.random().uniform();
      cluster->simulation.at(wait_s, [&, worker] { step(worker); });
    });
  };
  for (int worker = 0; worker < 3; ++worker) step(worker);
  cluster->simulation.run_for(0.3);
  const std::string dead = primary();
  cluster->simulation.crash(dead);
  ASSERT_TRUE(cluster->simulation.run_until([&] { return num_done == 3; }, 100));

  std::vector<float> expected(kElements), velocity(kElements);
  for (std::uint64_t k = 0; k < kSteps; ++k) {
    std::vector<float> sum(kElements);
    for (std::size_t i = 0; i < kElements; ++i)
      sum[i] = (gradient(0, k, i) + gradient(1, k, i)) + gradient(2, k, i);
    optimizer_rule("sgd").update(with_defaults(spec.optimizer),
                                 {.values = expected, .gradient = sum, .state = velocity, .step = k + 1});
  }
  for (const auto& values : pulled) EXPECT_EQ(values, expected);
}

TEST_F(ClusterTest, AppliesEachPushWithItsOwnRate) {
  TableSpec spec = small_table();
  spec.optimizer.name = "sgd";
  spec.optimizer.lr = 0.5;
  begin(spec);
  const auto push_at = [&](double lr) {
    const PushOptions options = {.lr = lr};
    return cluster->wait(
        [&](Done done) { cluster->worker(0).push(table, all(1), std::move(done), options); });
  };
  ASSERT_EQ(push_at(0.25).error, ErrorKind::kNone);
  EXPECT_EQ(pull(1), std::vector<float>(kElements, -0.25F));
  ASSERT_EQ(push_at(0).error, ErrorKind::kNone);
  EXPECT_EQ(pull(1), std::vector<float>(kElements, -0.25F));
  for (const double none : {std::nan(""), -2.0, HUGE_VAL})
    EXPECT_EQ(push_at(none).error, ErrorKind::kMalformed);
  ASSERT_EQ(push(0, all(1)).error, ErrorKind::kNone);  // the rate of the table
  EXPECT_EQ(pull(1), std::vector<float>(kElements, -0.75F));
}

TEST_F(ClusterTest, HasRateOfPyTorchByDefault) {
  TableSpec spec = small_table();
  spec.optimizer.name = "sgd";
  begin(spec);
  ASSERT_EQ(push(0, all(1)).error, ErrorKind::kNone);
  EXPECT_EQ(pull(1), std::vector<float>(kElements, -0.001F));
  const auto open_with = [&](double lr) {
    spec.optimizer.lr = lr;
    return cluster->wait([&](Done done) { cluster->worker(1).create_table(spec, std::move(done)); }).message;
  };
  EXPECT_EQ(open_with(1e-3), "");
  EXPECT_THAT(open_with(1), testing::HasSubstr("already, with other options; open it with those"));
}

TEST_F(ClusterTest, AssignmentResetsAndRestoreKeepsOptimizerState) {
  TableSpec spec = small_table();
  spec.optimizer.name = "adam";
  spec.optimizer.lr = 0.1;
  begin(spec);
  const auto push_twice = [&] {
    EXPECT_EQ(push(0, all(1)).error, ErrorKind::kNone);
    EXPECT_EQ(push(0, all(-3)).error, ErrorKind::kNone);
    return pull(0);
  };
  const auto assign = [&] {
    return cluster->wait([&](Done done) { cluster->worker(0).assign(table, all(2), std::move(done)); });
  };
  ASSERT_EQ(assign().error, ErrorKind::kNone);
  const std::vector<float> once = push_twice();
  const Result saved =
      cluster->wait([&](Done done) { cluster->worker(0).pull_state(table, 0, std::move(done)); });
  ASSERT_EQ(saved.values.size(), 3 * 4 * sizeof(float));
  EXPECT_EQ(saved.num_updates, 2U);
  const std::vector<float> on = push_twice();
  EXPECT_NE(on, once);
  ASSERT_EQ(assign().error, ErrorKind::kNone);
  EXPECT_EQ(push_twice(), once);  // as a new table
  EXPECT_EQ(push(0, all(7)).error, ErrorKind::kNone);
  ASSERT_EQ(cluster
                ->wait([&](Done done) {
                  cluster->worker(1).restore_chunk(table, 0, saved.values, saved.num_updates,
                                                   std::move(done));
                })
                .error,
            ErrorKind::kNone);
  const std::vector<float> restored = push_twice();
  EXPECT_EQ(std::vector<float>(restored.begin(), restored.begin() + 4),
            std::vector<float>(on.begin(), on.begin() + 4));
  EXPECT_NE(restored.back(), on.back());  // of a chunk that was not restored
}

TEST_F(ClusterTest, RejectsPushesBeyondLimitOfClock) {
  TableSpec spec = small_table(0);
  spec.apply_at = ApplyAt::kClock;
  spec.chunk_elements = 1;
  spec.num_elements = 300;  // all in one partition, whose clock could not pass them
  begin(spec, {.num_partitions = 1, .num_workers = 1});
  const auto all_of = [](float value) { return floats(std::vector<float>(300, value)); };
  const Result rejected =
      cluster->wait([&](Done done) { cluster->worker(0).push(table, all_of(1), std::move(done)); });
  EXPECT_EQ(rejected.error, ErrorKind::kTooLarge) << rejected.message;
  EXPECT_NE(rejected.message.find("--partitions"), std::string::npos) << rejected.message;
  std::vector<float> not_brought(300);
  const Result both = cluster->wait(
      [&](Done done) { cluster->worker(0).push_pull(table, all_of(1), not_brought, std::move(done)); });
  EXPECT_EQ(both.error, ErrorKind::kTooLarge) << "a pull alone would look as if the push had been taken";
  // None of it was applied, and the worker continues.
  const auto push_one = [&](std::uint64_t chunk) {
    cluster->worker(0).push_chunk(table, chunk, floats({1}), [](const Result& result) {
      EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
    });
  };
  for (std::uint64_t chunk = 0; chunk < 120; ++chunk) push_one(chunk);
  cluster->worker(0).tick();
  std::vector<float> values(300);
  const Result pulled =
      cluster->wait([&](Done done) { cluster->worker(0).pull(table, values, std::move(done)); });
  EXPECT_EQ(pulled.error, ErrorKind::kNone) << pulled.message;
  std::vector<float> expected(300);
  std::fill_n(expected.begin(), 120, 1.0F);
  EXPECT_EQ(values, expected);
}

TEST_F(ClusterTest, RejectsMemberWithFalseIdentity) {
  begin(small_table());
  // Its certificate is that of a worker.
  cluster->simulation.add("impostor", "worker", [] {
    return std::make_unique<Server>(ServerOptions{.name = "impostor",
                                                  .host = "there",
                                                  .address = "inproc:impostor",
                                                  .coordinator = "inproc:coordinator"});
  });
  cluster->simulation.start("impostor");
  cluster->simulation.run_for(5);
  for (const auto& [id, server] : cluster->coordinator().map().servers) EXPECT_NE(server.name, "impostor");
  EXPECT_EQ(push(0, all(1)).error, ErrorKind::kNone);
}

TEST_F(ClusterTest, ServersComeAndGoWhileWorkersPush) {
  begin(small_table());
  float sum = 0;
  const auto push_some = [&] {
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(push(i % 2, all(1)).error, ErrorKind::kNone);
      ++sum;
    }
  };
  push_some();
  cluster->add_server(3);
  push_some();
  ASSERT_TRUE(cluster->settles(60));
  push_some();
  cluster->server(0).leave();
  push_some();
  ASSERT_TRUE(cluster->simulation.run_until([&] { return cluster->server(0).is_released(); }, 60));
  cluster->simulation.crash("server0");
  push_some();
  EXPECT_EQ(pull(0), std::vector<float>(kElements, sum));
}

TEST_F(ClusterTest, MovesOnlyShareOfNewServer) {
  constexpr int kPartitions = 256;
  begin(small_table(), {.num_partitions = kPartitions});
  const auto chains = [&] {
    std::vector<std::vector<ServerId>> result;
    for (const PartitionEntry& entry : cluster->coordinator().map().partitions) result.push_back(entry.chain);
    return result;
  };
  const auto before = chains();
  cluster->add_server(3);
  cluster->simulation.run_for(1);
  ASSERT_TRUE(cluster->settles(60));
  const auto after = chains();
  const ServerId comes = cluster->coordinator().map().servers.rbegin()->first;
  int num_copied = 0;
  for (std::size_t p = 0; p < after.size(); ++p) {
    for (const ServerId id : after[p]) {
      if (std::find(before[p].begin(), before[p].end(), id) != before[p].end()) continue;
      ++num_copied;
      EXPECT_EQ(id, comes);
    }
  }
  EXPECT_GE(num_copied, 0.9 * 2 * kPartitions / 4);
  EXPECT_LE(num_copied, 1.1 * 2 * kPartitions / 4);
  cluster->simulation.crash("coordinator");
  cluster->simulation.start("coordinator");
  cluster->simulation.run_for(5);
  ASSERT_TRUE(cluster->settles(60));
  EXPECT_EQ(chains(), after);
}

}  // namespace
}  // namespace trireme::ps
