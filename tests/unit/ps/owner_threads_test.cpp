// Partitions on their own threads, under real loops, for ThreadSanitizer.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "tests/support/temporary_folder.h"
#include "tests/unit/ps/cluster.h"
#include "tests/unit/ps/served.h"
#include "trireme/ps/internal/owner_pool.h"

namespace trireme::ps {
namespace {

using ServedWorker = Served<ClientNode>;

/// A coordinator, two servers and workers, each with its own loop in this process.
class ThreadedCluster {
 public:
  explicit ThreadedCluster(const ServerOptions& like, int num_workers = 2) {
    const std::string at = "inproc:" + folder_.path().filename().string() + "-";
    auto options = serving("coordinator", "coordinator", at + "coordinator");
    options.folder = (folder_.path() / "log").string();
    coordinator_.emplace(options,
                         CoordinatorOptions{.num_partitions = 8, .num_replicas = 2, .first_servers = 2});
    for (int i = 0; i < 2; ++i) {
      ServerOptions server = like;
      server.name = "server" + std::to_string(i);
      server.host = "host" + std::to_string(i);
      server.address = at + server.name;
      server.coordinator = at + "coordinator";
      servers_[i].emplace(serving("server", server.name, server.address), server);
    }
    for (int i = 0; i < num_workers; ++i) {
      const ClientOptions client = {.worker = static_cast<WorkerId>(i),
                                    .host = "here",
                                    .coordinator = at + "coordinator",
                                    .timeout_s = 100};
      workers_.push_back(std::make_unique<ServedWorker>(serving("worker", "worker"), client));
    }
  }

  Server& server(int i) { return servers_[i]->node(); }
  ServerCounts counts(int i) {
    return servers_[i]->on_its_thread([](Server& server) { return server.counts(); });
  }
  ServedWorker& worker(int i) { return *workers_[static_cast<std::size_t>(i)]; }
  int num_workers() const { return static_cast<int>(workers_.size()); }

  /// Starts a call of a worker.
  template <class Begin>
  std::future<Result> begin(int i, const Begin& call) {
    auto told = std::make_shared<std::promise<Result>>();
    auto result = told->get_future();
    worker(i).on_its_thread([&](ClientNode& node) {
      call(node, [told](const Result& result_of_call) { told->set_value(result_of_call); });
      return 0;
    });
    return result;
  }
  template <class Begin>
  Result wait(int i, const Begin& call) {
    auto result = begin(i, call);
    Result late;
    late.error = ErrorKind::kTimeout;
    if (result.wait_for(kMaxWait) != std::future_status::ready) return late;
    return result.get();
  }
  TableId create(const TableSpec& spec) {
    for (int i = 0; i < num_workers(); ++i)
      wait(i, [&](ClientNode& node, Done done) { node.create_table(spec, std::move(done)); });
    return worker(0).on_its_thread([&](ClientNode& node) { return node.map().table(spec.name)->id; });
  }

 private:
  test::TemporaryFolder folder_;
  std::optional<Served<Coordinator>> coordinator_;
  std::optional<Served<Server>> servers_[2];
  std::vector<std::unique_ptr<ServedWorker>> workers_;
};

ServerOptions owners(int threads) {
  ServerOptions options;
  options.owner_threads = threads;
  return options;
}

TableSpec table_of(std::uint64_t num_chunks, std::uint32_t chunk_elements) {
  TableSpec spec;
  spec.name = "weights";
  spec.num_elements = num_chunks * chunk_elements;
  spec.chunk_elements = chunk_elements;
  spec.staleness = kAsynchronous;
  return spec;
}

/// A worker that keeps several pushes and pulls of every chunk in flight.
struct Pushing {
  TableId table;
  std::uint64_t num_chunks;
  std::uint32_t chunk_elements;
  int rounds;
  std::atomic<int> num_open{0}, num_torn{0}, num_errors{0};
  std::promise<void> over;

  void start(ClientNode& node) {
    num_open = 2 * static_cast<int>(num_chunks);
    for (std::uint64_t chunk = 0; chunk < num_chunks; ++chunk) {
      push(node, chunk, rounds);
      pull(node, chunk, rounds);
    }
  }
  void push(ClientNode& node, std::uint64_t chunk, int left) {
    if (left == 0) return end();
    const auto values = floats(std::vector<float>(chunk_elements, static_cast<float>(1 + left % 3)));
    node.push_chunk(table, chunk, values, [](const Result&) {});
    node.push_chunk(table, chunk, values, [this, &node, chunk, left](const Result& result) {
      if (result.error != ErrorKind::kNone) ++num_errors;
      push(node, chunk, left - 1);
    });
  }
  void pull(ClientNode& node, std::uint64_t chunk, int left) {
    if (left == 0) return end();
    node.pull_chunk(table, chunk, 0, [this, &node, chunk, left](const Result& result) {
      if (result.error != ErrorKind::kNone) ++num_errors;
      std::vector<float> values(result.values.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), result.values.bytes().data(), result.values.size());
      // Every push adds the same value to all elements.
      const bool torn = std::ranges::any_of(values, [&](float value) { return value != values.front(); });
      num_torn += torn ? 1 : 0;
      pull(node, chunk, left - 1);
    });
  }
  void end() {
    if (--num_open == 0) over.set_value();
  }
  float sum() const {
    float result = 0;
    for (int left = 1; left <= rounds; ++left) result += 2 * static_cast<float>(1 + left % 3);
    return result;
  }
};

/// All workers push and pull concurrently. Then every element must be the sum of all pushes.
void expect_exact_sums(ThreadedCluster& cluster, const TableSpec& spec, int rounds) {
  const TableId table = cluster.create(spec);
  std::vector<std::unique_ptr<Pushing>> work;
  for (int i = 0; i < cluster.num_workers(); ++i) {
    work.push_back(std::make_unique<Pushing>(table, spec.num_chunks(), spec.chunk_elements, rounds));
    cluster.worker(i).on_its_thread([&](ClientNode& node) {
      work.back()->start(node);
      return 0;
    });
  }
  float sum = 0;
  for (const auto& each : work) {
    ASSERT_EQ(each->over.get_future().wait_for(kMaxWait), std::future_status::ready);
    EXPECT_EQ(each->num_errors, 0);
    EXPECT_EQ(each->num_torn, 0);
    sum += each->sum();
  }
  std::vector<float> values(spec.num_elements);
  const Result pulled =
      cluster.wait(0, [&](ClientNode& node, Done done) { node.pull(table, values, std::move(done)); });
  EXPECT_EQ(pulled.error, ErrorKind::kNone) << pulled.message;
  EXPECT_EQ(values, std::vector<float>(spec.num_elements, sum));
}

TEST(OwnerThreads, SumTwoWorkersExactlyWithoutTornPulls) {
  ThreadedCluster cluster(owners(2));
  expect_exact_sums(cluster, table_of(6, 4096), 60);
  // Both replicas have the same bytes when no message is in flight.
  for (PartitionId id = 0; id < 8; ++id) {
    const auto same = [&] {
      const ReplicaReport one = cluster.server(0).report(id), other = cluster.server(1).report(id);
      return one.holds_all && other.holds_all && one.version == other.version && one.digest == other.digest;
    };
    const auto until = std::chrono::steady_clock::now() + kMaxWait;
    while (!same() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_TRUE(same()) << "partition " << id;
  }
  EXPECT_GT(cluster.counts(0).done_at_once + cluster.counts(1).done_at_once, 0U);
}

TEST(OwnerThreads, TakeConcurrentMessagesInBatches) {
  ThreadedCluster cluster(owners(1), 1);
  const TableId table = cluster.create(table_of(1, 4));
  constexpr int kPushes = 1000;
  std::atomic<int> num_open{kPushes};
  std::promise<void> over;
  cluster.worker(0).on_its_thread([&](ClientNode& node) {
    for (int i = 0; i < kPushes; ++i)
      node.push_chunk(table, 0, floats(std::vector<float>(4, 1)), [&](const Result&) {
        if (--num_open == 0) over.set_value();
      });
    return 0;
  });
  ASSERT_EQ(over.get_future().wait_for(kMaxWait), std::future_status::ready);
  // At most one in a turn of the loop, because many of them would block it.
  EXPECT_LT(cluster.counts(0).done_at_once + cluster.counts(1).done_at_once, kPushes / 2U);
}

TEST(OwnerThreads, AreWokenForLongRequests) {
  ThreadedCluster cluster(owners(2), 1);
  const TableId table = cluster.create(table_of(6, 8192));
  for (std::uint64_t chunk = 0; chunk < 6; ++chunk) {
    const auto values = floats(std::vector<float>(8192, 1));
    EXPECT_EQ(cluster
                  .wait(0, [&](ClientNode& node,
                               Done done) { node.push_chunk(table, chunk, values, std::move(done)); })
                  .error,
              ErrorKind::kNone);
  }
  EXPECT_EQ(cluster.counts(0).done_at_once + cluster.counts(1).done_at_once, 0U);
}

TEST(OwnerThreads, LoseNothingWithFullQueues) {
  ServerOptions narrow = owners(2);
  narrow.most_queued = 2;
  narrow.most_queued_bytes = 8 << 10;
  ThreadedCluster cluster(narrow);
  expect_exact_sums(cluster, table_of(6, 1024), 60);
  EXPECT_GT(cluster.counts(0).pauses + cluster.counts(1).pauses, 0U);
}

TEST(OwnerThreads, LoopWithoutThreadsIsEquivalent) {
  ThreadedCluster cluster(owners(0));
  expect_exact_sums(cluster, table_of(6, 1024), 20);
}

/// A node that gives every message of kind 1 to the owner of its pool, which the test blocks. It answers
/// other messages itself.
class Feeder final : public wire::Node {
 public:
  static constexpr std::size_t kMost = 4;
  Feeder()
      : pool_({.num_threads = 1, .queue = {.most_items = kMost}, .partition = {}}, facts_,
              [](const OwnerOutput&) {}) {}

  void on_start(wire::Surroundings& surroundings) override {
    surroundings_ = &surroundings;
    facts_.now_ns = [&surroundings] { return surroundings.now_ns(); };
    pool_.start(surroundings);
  }
  void on_connected(wire::ConnectionId, const wire::PeerIdentity&) override {}
  void on_message(wire::ConnectionId from, wire::Message message) override {
    if (message.kind != 1) return surroundings_->network().send(from, {.kind = message.kind});
    const auto number = static_cast<int>(message.head.at(0));
    auto event = std::make_unique<OwnerEvent>(CallEvent{[this, number](const PartitionOwner&) {
      may_go_on_.wait();
      in_order_ = in_order_ && number == num_done_;
      if (number == throws_at_) throw std::runtime_error("the owner has had enough");
      if (++num_done_ == 100) all_done.set_value();
    }});
    event->connection = from;
    ++num_given;
    pool_.give(0, std::move(event));
  }
  void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
  void on_timer(wire::TimerId) override {}

  void let_go_on() { held_up_.set_value(); }
  void throw_at(int number) { throws_at_ = number; }
  bool in_order() const { return in_order_; }
  std::uint64_t num_pauses() const { return pool_.num_pauses(); }

  std::atomic<std::size_t> num_given{0};
  std::promise<void> all_done;

 private:
  std::promise<void> held_up_;
  std::shared_future<void> may_go_on_ = held_up_.get_future().share();
  std::atomic<int> throws_at_{-1};
  int num_done_ = 0;
  std::atomic<bool> in_order_{true};
  wire::Surroundings* surroundings_ = nullptr;
  ServerFacts facts_;
  OwnerPool pool_;
};

/// Sends requests on demand, and records the answers.
class Asker final : public wire::Node {
 public:
  explicit Asker(wire::Address to) : to_(std::move(to)) {}
  void on_start(wire::Surroundings& surroundings) override {
    surroundings_ = &surroundings;
    connection_ = surroundings.network().connect(to_);
  }
  void on_connected(wire::ConnectionId, const wire::PeerIdentity&) override { connected.set_value(); }
  void on_message(wire::ConnectionId, wire::Message) override { ++num_answers; }
  void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
  void on_timer(wire::TimerId) override {}
  void send(std::uint16_t kind, int number) {
    surroundings_->network().send(connection_, {.kind = kind, .head = {static_cast<std::byte>(number)}});
  }
  std::promise<void> connected;
  std::atomic<int> num_answers{0};

 private:
  wire::Address to_;
  wire::Surroundings* surroundings_ = nullptr;
  wire::ConnectionId connection_ = 0;
};

class BackPressure : public testing::Test {
 protected:
  void SetUp() override {
    for (auto* asker : {&flood, &other})
      ASSERT_EQ(asker->node().connected.get_future().wait_for(kMaxWait), std::future_status::ready);
  }
  void send_hundred() {
    flood.on_its_thread([](Asker& asker) {
      for (int i = 0; i < 100; ++i) asker.send(1, i);
      return 0;
    });
  }
  /// Waits for an answer, so that the feeder's loop has completed a turn.
  void go_round() {
    const int before = other.node().num_answers;
    other.on_its_thread([](Asker& asker) {
      asker.send(2, 0);
      return 0;
    });
    while (other.node().num_answers == before) std::this_thread::yield();
  }

  test::TemporaryFolder folder;
  const wire::Address at = "inproc:" + folder.path().filename().string();
  Served<Feeder> feeder{serving("server", "feeder", at)};
  Served<Asker> flood{serving("worker", "flood"), at}, other{serving("worker", "other"), at};
};

TEST_F(BackPressure, PausesOnlySenderThatFillsQueue) {
  send_hundred();
  while (feeder.node().num_given < Feeder::kMost) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) go_round();
  // One message that the blocked owner has taken, plus a full queue.
  EXPECT_LE(feeder.node().num_given, Feeder::kMost + 1);
  feeder.node().let_go_on();
  ASSERT_EQ(feeder.node().all_done.get_future().wait_for(kMaxWait), std::future_status::ready);
  EXPECT_TRUE(feeder.node().in_order());
  EXPECT_GT(feeder.on_its_thread([](Feeder& node) { return node.num_pauses(); }), 0U);
}

TEST_F(BackPressure, OwnerExceptionEndsServiceOfNode) {
  feeder.node().throw_at(3);
  feeder.node().let_go_on();
  send_hundred();
  EXPECT_EQ(feeder.node().in_order(), true);
  EXPECT_EQ(feeder.thrown(), "the owner has had enough");
}

}  // namespace
}  // namespace trireme::ps
