// Sparse tables of whole clusters: each test checks one guarantee.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/ps/cluster.h"
#include "trireme/ps/internal/key_lists.h"
#include "trireme/ps/internal/partition_state.h"

namespace trireme::ps {
namespace {

using Keys = std::vector<std::uint64_t>;
constexpr std::uint32_t kRowElements = 3;

TableSpec sums_of_rows(std::uint32_t staleness = kAsynchronous) {
  TableSpec spec;
  spec.name = "rows";
  spec.kind = TableKind::kSparse;
  spec.rows.elements = kRowElements;
  spec.staleness = staleness;
  spec.seed = 11;
  return spec;
}

/// Rows of one value each.
std::vector<float> rows(const std::vector<float>& values) {
  std::vector<float> all;
  for (const float value : values) all.insert(all.end(), kRowElements, value);
  return all;
}

class SparseCluster : public testing::Test {
 protected:
  void begin(const TableSpec& spec, ClusterOptions options = {}) {
    cluster.emplace(7, options);
    table = cluster->create(0, spec);
    ASSERT_NE(table, 0U);
    ASSERT_TRUE(cluster->settles(10));
  }
  Result push(int worker, const Keys& keys, const std::vector<float>& values) {
    return cluster->wait(
        [&](Done done) { cluster->worker(worker).push_rows(table, keys, values, std::move(done)); });
  }
  std::vector<float> pull(int worker, const Keys& keys, std::uint32_t elements = kRowElements) {
    std::vector<float> values(keys.size() * elements);
    const Result pulled = cluster->wait(
        [&](Done done) { cluster->worker(worker).pull_rows(table, keys, values, std::move(done)); });
    EXPECT_EQ(pulled.error, ErrorKind::kNone) << pulled.message;
    return values;
  }
  /// The primary server of a key.
  std::string primary(std::uint64_t key) {
    const ClusterMap& map = cluster->coordinator().map();
    return map.server(map.partitions[map.partition_of(table, key)].primary())->name;
  }
  /// Checks that all replicas of each partition are equal.
  void expect_equal_replicas(int num_servers) {
    for (PartitionId id = 0; id < cluster->options().num_partitions; ++id) {
      std::map<Version, std::uint64_t> digests;
      int num_replicas = 0;
      for (int i = 0; i < num_servers; ++i) {
        if (!cluster->simulation.is_running(Cluster::server_name(i))) continue;
        const auto report = cluster->server(i).report(id);
        if (!report.holds_all) continue;
        ++num_replicas;
        digests[report.version] = report.digest;
        EXPECT_EQ(digests.size(), 1U) << "versions of partition " << id;
        EXPECT_EQ(digests.begin()->second, report.digest) << "partition " << id;
      }
      EXPECT_EQ(num_replicas, 2) << "of partition " << id;
    }
  }

  std::optional<Cluster> cluster;
  TableId table = 0;
};

TEST_F(SparseCluster, AnswersEachKeyInPlaceDespiteRepeats) {
  begin(sums_of_rows());
  EXPECT_EQ(push(0, {9, 2, UINT64_MAX, 0}, rows({9, 2, 7, 5})).error, ErrorKind::kNone);
  EXPECT_EQ(pull(1, {0, 9, 0, 4, UINT64_MAX, 2, 9}), rows({5, 9, 5, 0, 7, 2, 9}));
  EXPECT_EQ(pull(1, {}), std::vector<float>{});
}

TEST_F(SparseCluster, AddsRowsOfKeyInGivenOrder) {
  begin(sums_of_rows());
  // In f32 the large number absorbs the small one, depending on the order.
  EXPECT_EQ(push(0, {5, 1, 5, 5}, rows({1e8F, 1, 3, -1e8F})).error, ErrorKind::kNone);
  EXPECT_EQ(pull(0, {5}), rows({(1e8F + 3) - 1e8F}));
  EXPECT_EQ(push(0, {6, 1, 6, 6}, rows({1e8F, 1, -1e8F, 3})).error, ErrorKind::kNone);
  EXPECT_EQ(pull(0, {6, 1}), rows({3, 2}));
}

TEST_F(SparseCluster, SeesItsPushesBeforeAcknowledgement) {
  begin(sums_of_rows());
  cluster->simulation.set_faults({.reorder = 0.5});  // a pull may arrive before an earlier push
  Keys keys;
  for (std::uint64_t key = 0; key < 40; ++key) keys.push_back(key);
  for (int round = 1; round <= 5; ++round) {
    cluster->worker(0).push_rows(table, keys, rows(std::vector<float>(40, 1)), [](const Result&) {});
    EXPECT_EQ(pull(0, keys), rows(std::vector<float>(40, static_cast<float>(round))));
  }
}

TEST_F(SparseCluster, SendsListOfKeysOncePerConnection) {
  begin(sums_of_rows());
  Keys keys;
  for (std::uint64_t key = 0; key < 1000; ++key) keys.push_back(key * 7919);
  const std::uint64_t bytes_of_keys = keys.size() * sizeof(std::uint64_t);
  const auto sent_by = [&](MessageKind kind, const auto& action) {
    const auto number = static_cast<std::uint16_t>(kind);
    const std::uint64_t before = cluster->simulation.num_bytes(number);
    action();
    return cluster->simulation.num_bytes(number) - before;
  };
  const std::vector<float> ones = rows(std::vector<float>(1000, 1));
  const auto one_pull = [&] { return sent_by(MessageKind::kPull, [&] { pull(0, keys); }); };
  const auto one_push = [&] { return sent_by(MessageKind::kRequest, [&] { push(0, keys, ones); }); };
  const std::uint64_t first = one_pull();
  EXPECT_GT(first, bytes_of_keys);
  EXPECT_EQ(one_pull(), first - bytes_of_keys);
  EXPECT_LT(one_push(), ones.size() * sizeof(float) + bytes_of_keys) << "the pull's keys are the push's";
  cluster->simulation.crash(primary(keys[0]));
  for (int i = 0; i < 3; ++i) push(0, keys, ones);
  EXPECT_EQ(pull(0, keys), rows(std::vector<float>(1000, 4)));
  EXPECT_EQ(pull(1, keys), rows(std::vector<float>(1000, 4)));
}

TEST(KeyLists, ForgetTheOldestBeyondTheirBounds) {
  KeyLists lists;
  const std::vector<std::byte> keys(KeyLists::kMostBytes / 4);
  for (std::uint64_t hash = 1; hash <= 5; ++hash) lists.keep(hash, keys);
  EXPECT_TRUE(lists.find(1).empty());
  for (std::uint64_t hash = 2; hash <= 5; ++hash) EXPECT_EQ(lists.find(hash).size(), keys.size());
  EXPECT_EQ(lists.num_bytes(), KeyLists::kMostBytes);
  lists.keep(6, std::vector<std::byte>(KeyLists::kMostBytes + 1));
  EXPECT_TRUE(lists.find(6).empty()) << "more than all of the room";
  const std::vector<std::byte> few(16);
  for (std::uint64_t hash = 100; hash < 100 + KeyLists::kMostLists; ++hash) lists.keep(hash, few);
  EXPECT_TRUE(lists.find(5).empty());
  EXPECT_EQ(lists.num_bytes(), KeyLists::kMostLists * few.size());
}

TEST_F(SparseCluster, HasSameInitialValuesAndCreatesNothing) {
  TableSpec spec = sums_of_rows();
  spec.initial_range = 0.1F;
  begin(spec);
  const Keys keys = {3, 1, 4, 15, 9, 2, 6};
  std::vector<float> expected;
  for (const std::uint64_t key : keys) {
    for (std::uint32_t i = 0; i < kRowElements; ++i) expected.push_back(initial_value(spec, key, i));
  }
  const Version before = cluster->server(0).report(0).version;
  EXPECT_EQ(pull(0, keys), expected);
  EXPECT_EQ(cluster->server(0).report(0).version, before);
  push(0, {4}, rows({1}));
  for (std::size_t i = 2 * kRowElements; i < 3 * kRowElements; ++i) expected[i] += 1;
  cluster->simulation.crash(primary(4));
  EXPECT_EQ(pull(1, keys), expected);
}

TEST_F(SparseCluster, AssignsRowsAsTheyAre) {
  TableSpec spec = sums_of_rows();
  spec.rows.admit_after = 9;
  begin(spec);
  const Result assigned = cluster->wait([&](Done done) {
    cluster->worker(0).assign_rows(table, Keys{1, 2, 1}, rows({4, 5, 6}), std::move(done));
  });
  EXPECT_EQ(assigned.error, ErrorKind::kNone);
  push(1, {1, 2, 3}, rows({10, 10, 10}));
  EXPECT_EQ(pull(0, {1, 2, 3}), rows({16, 15, 0}));
}

TEST_F(SparseCluster, SeparatesPushesOfDifferentRates) {
  TableSpec spec = sums_of_rows();
  spec.optimizer = {.name = "sgd", .lr = 1};
  begin(spec);
  // All are sent at once, and merged where possible.
  for (const double lr : {1.0, 1.0, 0.5, 0.25}) {
    cluster->worker(0).push_rows(table, Keys{1, 2}, rows({1, 1}), [](const Result&) {}, {.lr = lr});
  }
  EXPECT_EQ(pull(0, {1, 2}), rows({-2.75F, -2.75F}));
}

TEST_F(SparseCluster, CombinedCallFailsWithItsPush) {
  begin(sums_of_rows());
  std::vector<float> values(3 * kRowElements);
  const auto both = [&](const Keys& keys, const std::vector<float>& pushed) {
    return cluster->wait(
        [&](Done done) { cluster->worker(0).push_pull_rows(table, keys, pushed, values, std::move(done)); });
  };
  EXPECT_EQ(both({5, 9, 5}, rows({1, 2, 3})).error, ErrorKind::kNone);
  EXPECT_EQ(values, rows({4, 2, 4}));
  EXPECT_EQ(both({5, 9, 5}, rows({1, 2})).error, ErrorKind::kOutOfRange) << "a row is missing";
  EXPECT_EQ(pull(1, {5, 9}), rows({4, 2})) << "nothing of it was taken";
}

TEST_F(SparseCluster, RejectsMismatchedSizesAndTableKinds) {
  begin(sums_of_rows());
  EXPECT_EQ(push(0, {1, 2}, rows({1})).error, ErrorKind::kOutOfRange);
  std::vector<float> values(5);
  const Result pulled = cluster->wait(
      [&](Done done) { cluster->worker(0).pull_rows(table, Keys{1}, values, std::move(done)); });
  EXPECT_EQ(pulled.error, ErrorKind::kOutOfRange);
  EXPECT_THAT(pulled.message, testing::HasSubstr("pull of 5 elements for 1 keys of table rows"));
  const Result whole = cluster->wait([&](Done done) { cluster->worker(0).pull(table, {}, std::move(done)); });
  EXPECT_THAT(whole.message, testing::HasSubstr("table rows is sparse: use push_rows"));
  TableSpec dense;
  dense.name = "dense";
  dense.num_elements = 4;
  table = cluster->create(0, dense);
  EXPECT_THAT(push(0, {1}, rows({1})).message, testing::HasSubstr("table dense is dense"));
}

TEST(SparseState, ErasesRowsAsStepsEnd) {
  TableSpec spec = sums_of_rows();
  spec.id = 1;
  spec.rows.evict_after = 3;
  RowBatchWriter writer(1, kRowElements);
  writer.put(0, 5, 1)[0] = 1;
  const wire::Buffer body = std::move(writer).buffer();
  const WorkerLife life = {.worker = 0, .incarnation = 1};
  LogRecord first;
  first.tables = {spec};
  first.requests = {{.life = life, .sequence = 1, .op = RequestOp::kJoin}};
  first.updates = {{.table = spec.id, .num_bytes = body.size()}};
  PartitionState state;
  ASSERT_TRUE(state.fits(first, body));
  state.apply(first, body);
  EXPECT_EQ(state.snapshot().size(), 2U);
  EXPECT_EQ(state.size().rows, 1U);
  EXPECT_EQ(state.size().elements, kRowElements);
  for (WorkerClock clock = 1; clock <= 8; ++clock) {
    LogRecord tick;
    tick.requests = {{.life = life, .sequence = 1 + clock, .op = RequestOp::kTick, .clock = clock}};
    state.apply(tick, {});
  }
  EXPECT_EQ(state.snapshot().size(), 1U);  // no rows are in it
  EXPECT_EQ(state.size().rows, 0U);
}

TEST_F(SparseCluster, SendsLongRowsInSeveralMessages) {
  TableSpec spec = sums_of_rows();
  spec.rows.elements = 16 << 10;
  begin(spec, {.num_partitions = 1});
  Keys keys;
  std::vector<float> values;
  for (std::uint64_t key = 0; key < 50; ++key) {
    keys.push_back(49 - key);
    values.insert(values.end(), spec.rows.elements, static_cast<float>(key));
  }
  EXPECT_EQ(push(0, keys, values).error, ErrorKind::kNone);
  EXPECT_EQ(pull(1, keys, spec.rows.elements), values);
}

TEST_F(SparseCluster, CopiesRowsToNewServersDuringPushes) {
  TableSpec spec = sums_of_rows();
  spec.rows.elements = 64;
  begin(spec, {.num_partitions = 2});
  Keys keys;
  for (std::uint64_t key = 0; key < 10'000; ++key) keys.push_back(key * 977);
  const std::vector<float> ones(keys.size() * 64, 1);
  float sum = 0;
  const auto push_all = [&](int times) {
    for (int i = 0; i < times; ++i, ++sum) EXPECT_EQ(push(i % 2, keys, ones).error, ErrorKind::kNone);
  };
  push_all(2);
  for (int i = 0; i < 3; ++i) {
    cluster->simulation.crash(Cluster::server_name(i));
    push_all(2);
    cluster->simulation.start(Cluster::server_name(i));
    push_all(2);
    ASSERT_TRUE(cluster->settles(60));
  }
  EXPECT_EQ(pull(0, keys, 64), std::vector<float>(keys.size() * 64, sum));
  cluster->simulation.run_for(1);
  expect_equal_replicas(3);
}

TEST_F(SparseCluster, ReplicasAgreeOnAdmissionAndEviction) {
  TableSpec spec = sums_of_rows(1);
  spec.initial_range = 1;
  spec.rows.admit_after = 2;
  spec.rows.admit_probability = 0.5;
  spec.rows.evict_after = 3;
  spec.rows.most_rows = 100;
  spec.optimizer.name = "adam";
  begin(spec);
  for (int worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(cluster->wait([&](Done done) { cluster->worker(worker).join(table, std::move(done)); }).error,
              ErrorKind::kNone);
  }
  Random random(4);
  const auto work = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      for (int worker = 0; worker < 2; ++worker) {
        Keys keys;
        for (int i = 0; i < 60; ++i) keys.push_back(random.below(random.below(2) == 0 ? 30 : 1000));
        push(worker, keys, std::vector<float>(keys.size() * kRowElements, random.uniform()));
        cluster->worker(worker).tick();
      }
    }
  };
  work(10);
  cluster->simulation.crash("server1");
  work(10);
  cluster->simulation.start("server1");
  ASSERT_TRUE(cluster->settles(60));
  work(5);
  cluster->simulation.run_for(1);
  expect_equal_replicas(3);
}

/// The gradients of the first worker are much larger, so that another order of the sum gives other bits.
float gradient(int worker, std::uint64_t step, std::uint64_t key, std::size_t element) {
  Random random(9, worker, step, key, element);
  const float value = 2 * random.uniform() - 1;
  return worker == 0 ? value * 1e4F : value;
}
bool pushes(int worker, std::uint64_t step, std::uint64_t key) {
  return Random(10, worker, step, key).below(3) > 0;
}

TEST_F(SparseCluster, OrderedSumsKeepBitsOverFailure) {
  TableSpec spec = sums_of_rows(0);
  spec.apply_at = ApplyAt::kClock;
  spec.initial_range = 1;
  spec.optimizer = {.name = "adam", .lr = 0.1};
  begin(spec, {.num_servers = 3, .num_workers = 3});
  constexpr std::uint64_t kSteps = 12, kKeys = 30;
  for (int worker = 0; worker < 3; ++worker) {
    ASSERT_EQ(cluster->wait([&](Done done) { cluster->worker(worker).join(table, std::move(done)); }).error,
              ErrorKind::kNone);
  }
  Keys all;
  for (std::uint64_t key = 0; key < kKeys; ++key) all.push_back(key);
  std::vector<std::vector<float>> pulled(3, std::vector<float>(kKeys * kRowElements));
  int num_done = 0;
  const std::function<void(int)> step = [&](int worker) {
    ClientNode& client = cluster->worker(worker);
    if (client.clock() == kSteps) {
      ++num_done;
      return;
    }
    Keys keys;
    std::vector<float> values;
    for (const std::uint64_t key : all) {
      if (!pushes(worker, client.clock(), key)) continue;
      keys.push_back(key);
      for (std::size_t i = 0; i < kRowElements; ++i)
        values.push_back(gradient(worker, client.clock(), key, i));
    }
    client.push_rows(table, keys, values,
                     [](const Result& result) { EXPECT_EQ(result.error, ErrorKind::kNone); });
    client.tick();
    client.pull_rows(table, all, pulled[static_cast<std::size_t>(worker)], [&, worker](const Result& result) {
      EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
      const double wait_s = 0.05 * cluster->simulation.random().uniform();
      cluster->simulation.at(wait_s, [&, worker] { step(worker); });
    });
  };
  for (int worker = 0; worker < 3; ++worker) step(worker);
  cluster->simulation.run_for(0.3);
  cluster->simulation.crash(primary(0));
  ASSERT_TRUE(cluster->simulation.run_until([&] { return num_done == 3; }, 100));

  std::vector<float> expected;
  for (const std::uint64_t key : all) {
    std::vector<float> row, state(2 * kRowElements);
    for (std::uint32_t i = 0; i < kRowElements; ++i) row.push_back(initial_value(spec, key, i));
    std::uint64_t num_updates = 0;
    for (std::uint64_t k = 0; k < kSteps; ++k) {
      std::vector<float> sum;
      for (int worker = 0; worker < 3; ++worker) {
        if (!pushes(worker, k, key)) continue;
        const bool is_first = sum.empty();
        sum.resize(kRowElements);
        for (std::size_t i = 0; i < kRowElements; ++i)
          sum[i] = is_first ? gradient(worker, k, key, i) : sum[i] + gradient(worker, k, key, i);
      }
      if (sum.empty()) continue;
      optimizer_rule("adam").update(with_defaults(spec.optimizer),
                                    {.values = row, .gradient = sum, .state = state, .step = ++num_updates});
    }
    expected.insert(expected.end(), row.begin(), row.end());
  }
  for (const auto& values : pulled) EXPECT_EQ(values, expected);
}

}  // namespace
}  // namespace trireme::ps
