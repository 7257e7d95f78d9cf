// Workers that sleep for random times, and the staleness bound. Every answer is checked against all pushes,
// also over the death of a server.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/ps/cluster.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"
#include "trireme/ps/client.h"

namespace trireme::ps {
namespace {

constexpr int kApartWorkers = 3, kApartChunks = 4;
constexpr WorkerClock kApartSteps = 60;

TableSpec bounded_table(std::uint32_t staleness) {
  TableSpec spec;
  spec.name = "sums";
  spec.num_elements = std::uint64_t{kApartChunks} * kApartWorkers;
  spec.chunk_elements = kApartWorkers;
  spec.staleness = staleness;
  return spec;
}

/// All pushes: worker W adds a number of each step to element W of every chunk.
class PushLog {
 public:
  explicit PushLog(std::uint32_t staleness) : staleness_(staleness) {}

  /// The push of the worker in its next step.
  std::vector<float> next_push(int worker) {
    const std::lock_guard lock(mutex_);
    std::vector<float> sums(kApartWorkers);
    std::vector<float>& sums_of = sums_[static_cast<std::size_t>(worker)];
    const auto value = static_cast<float>(1 + random_.below(99));
    sums_of.push_back(sums_of.back() + value);
    sums[static_cast<std::size_t>(worker)] = value;
    return sums;
  }
  /// Checks a chunk that a worker pulled after it has ended `clock` steps.
  void check(int worker, WorkerClock clock, std::span<const float> values) {
    const std::lock_guard lock(mutex_);
    for (int other = 0; other < kApartWorkers; ++other) {
      const std::vector<float>& sums = sums_[static_cast<std::size_t>(other)];
      const auto found = std::find(sums.begin(), sums.end(), values[static_cast<std::size_t>(other)]);
      const auto seen = static_cast<WorkerClock>(found - sums.begin());
      if (found == sums.end())
        wrong(text("a sum of worker ", other, " that no number of its pushes has"));
      else if (seen + (other == worker ? 0 : staleness_) < clock)
        wrong(text("worker ", worker, " has ended ", clock, " steps and sees ", seen, " of worker ", other));
      else if (seen < clock)
        furthest_ = std::max(furthest_, clock - seen);
    }
  }
  std::string first_wrong() const {
    const std::lock_guard lock(mutex_);
    return wrong_;
  }
  /// The largest number of another worker's steps that an answer lacked.
  WorkerClock furthest() const { return furthest_; }

 private:
  void wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  const std::uint32_t staleness_;
  mutable std::mutex mutex_;
  Random random_{5};
  std::vector<std::vector<float>> sums_ = std::vector<std::vector<float>>(kApartWorkers, {0.0F});
  WorkerClock furthest_ = 0;
  std::string wrong_;
};

class Staleness : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Bounds, Staleness, testing::Values(0U, 1U, 3U, 10U),
                         testing::PrintToStringParamName());

/// A worker of a simulated cluster that runs consecutive steps.
struct Walker {
  Cluster& cluster;
  PushLog& log;
  TableId table;
  Random random;

  void step(int worker) {
    ClientNode& client = cluster.worker(worker);
    if (client.clock() == kApartSteps) return;
    const wire::Buffer push = floats(log.next_push(worker));
    for (int chunk = 0; chunk < kApartChunks; ++chunk)
      client.push_chunk(table, static_cast<std::uint64_t>(chunk), push, [](const Result&) {});
    client.tick();
    client.pull_chunk(table, random.below(kApartChunks), 0, [this, worker](const Result& result) {
      ASSERT_EQ(result.error, ErrorKind::kNone) << result.message;
      std::vector<float> values(kApartWorkers);
      std::memcpy(values.data(), result.values.bytes().data(), values.size() * sizeof(float));
      log.check(worker, cluster.worker(worker).clock(), values);
      // The first worker is slow, so that the others reach their bound.
      const double sleep_s = (worker == 0 ? 0.3 : 0.01) * random.uniform();
      cluster.simulation.at(sleep_s, [this, worker] { step(worker); });
    });
  }
};

TEST_P(Staleness, ReachesButNeverExceedsItsBound) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    Cluster cluster(seed, {.num_workers = kApartWorkers});
    PushLog log(GetParam());
    Walker walker{.cluster = cluster, .log = log, .table = 0, .random = Random(seed)};
    for (int worker = 0; worker < kApartWorkers; ++worker)
      walker.table = cluster.create(worker, bounded_table(GetParam()));
    ASSERT_NE(walker.table, 0U);
    ASSERT_TRUE(cluster.settles(60));
    for (int worker = 0; worker < kApartWorkers; ++worker) {
      const auto join = [&](Done done) { cluster.worker(worker).join(walker.table, std::move(done)); };
      ASSERT_EQ(cluster.wait(join).error, ErrorKind::kNone);
    }
    for (int worker = 0; worker < kApartWorkers; ++worker) walker.step(worker);
    const auto all_at = [&](WorkerClock clock) {
      for (int worker = 0; worker < kApartWorkers; ++worker) {
        if (cluster.worker(worker).clock() < clock) return false;
      }
      return true;
    };
    ASSERT_TRUE(cluster.simulation.run_until([&] { return all_at(kApartSteps / 2); }, 120));
    cluster.simulation.crash(Cluster::server_name(0));
    ASSERT_TRUE(cluster.simulation.run_until([&] { return all_at(kApartSteps); }, 120));
    cluster.simulation.run_for(1);
    EXPECT_EQ(log.first_wrong(), "") << "seed " << seed;
    EXPECT_EQ(log.furthest(), GetParam()) << "seed " << seed;
  }
}

TEST_P(Staleness, NeverExceedsItsBoundOverSockets) {
  RealCluster cluster(2);
  PushLog log(GetParam());
  std::vector<std::unique_ptr<Client>> clients;
  TableId table = 0;
  for (int worker = 0; worker < kApartWorkers; ++worker) {
    clients.push_back(std::make_unique<Client>(ClientOptions{
        .worker = static_cast<WorkerId>(worker), .host = "here", .coordinator = cluster.address()}));
    table = clients.back()->open_table(bounded_table(GetParam()));
  }
  const auto work = [&](int worker) {
    Client& client = *clients[static_cast<std::size_t>(worker)];
    Random random(7, static_cast<std::uint64_t>(worker));
    for (WorkerClock clock = 1; clock <= kApartSteps; ++clock) {
      const std::vector<float> push = log.next_push(worker);
      for (std::uint64_t chunk = 0; chunk < kApartChunks; ++chunk) {
        std::vector<std::byte> bytes(push.size() * sizeof(float));
        std::memcpy(bytes.data(), push.data(), bytes.size());
        client.push_chunk(table, chunk, wire::Buffer::of(std::move(bytes)));
      }
      client.tick();
      std::vector<float> values(kApartWorkers);
      client.pull_chunk(table, random.below(kApartChunks), values).get();
      log.check(worker, clock, values);
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(3000)));
      if (worker == 0 && clock == kApartSteps / 2) cluster.end_server(0);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int worker = 0; worker < kApartWorkers; ++worker)
      threads.emplace_back([&, worker] { EXPECT_NO_THROW(work(worker)); });
  }
  EXPECT_EQ(log.first_wrong(), "");
}

}  // namespace
}  // namespace trireme::ps
