// Delay compensation compared with a serial program of the published rule, over failures, restarts of workers
// and checkpoints.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/temporary_folder.h"
#include "tests/unit/ps/cluster.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/ps/client.h"

namespace trireme::ps {
namespace {

using Values = std::vector<float>;
constexpr std::size_t kElements = 10;
constexpr float kLr = 0.125F, kLambda = 1.5F;

TableSpec delayed(bool is_adaptive) {
  TableSpec spec;
  spec.name = "delayed";
  spec.num_elements = kElements;
  spec.chunk_elements = 4;
  spec.staleness = kAsynchronous;
  spec.optimizer = {.name = "sgd", .lr = kLr};
  spec.initial_range = 1;
  spec.delay = {.lambda = kLambda, .is_adaptive = is_adaptive};
  return spec;
}

Values random_gradient(Random& random) {
  Values gradient(kElements);
  for (float& each : gradient) each = 2 * random.uniform() - 1;
  return gradient;
}

/// Algorithm 2 of Zheng et al.: consecutive pushes with SGD.
class Serial {
 public:
  explicit Serial(const TableSpec& spec) : is_adaptive_(spec.delay.is_adaptive) {
    for (std::uint64_t chunk = 0; chunk < spec.num_chunks(); ++chunk) {
      for (std::uint32_t i = 0; i < spec.elements_of(chunk); ++i)
        values.push_back(initial_value(spec, chunk, i));
    }
  }
  /// `base`: w_bak of the worker. Empty if it has none.
  void push(const Values& gradient, const Values& base) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float g = gradient[i];
      float factor = kLambda;
      if (is_adaptive_) {
        mean_square_[i] = 0.95F * mean_square_[i] + (1 - 0.95F) * g * g;
        factor = kLambda / std::sqrt(mean_square_[i] + 1e-7F);
      }
      const float correction = base.empty() ? 0 : factor * g * g * (values[i] - base[i]);
      values[i] -= kLr * (g + correction);
    }
  }
  Values values;

 private:
  bool is_adaptive_;
  Values mean_square_ = Values(kElements);
};

/// Equal up to the operations that a compiler fuses.
void expect_close(const Values& found, const Values& expected, const std::string& when) {
  for (std::size_t i = 0; i < kElements; ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-6F * std::max(1.0F, std::abs(expected[i])))
        << when << ", element " << i;
}

/// Workers that push and pull in the random order of a seed, compared with the serial program.
class DelayedRun {
 public:
  DelayedRun(std::uint64_t seed, bool is_adaptive)
      : random_(seed, 4), cluster_(seed), spec_(delayed(is_adaptive)), serial_(spec_), bases_(2) {}

  void begin() {
    table_ = cluster_.create(0, spec_);
    ASSERT_TRUE(table_ != 0 && cluster_.settles(60));
    for (int worker = 0; worker < 2; ++worker) join(worker);
  }
  void join(int worker) {
    cluster_.wait([&](Done done) { cluster_.worker(worker).wait_until_member(std::move(done)); });
    cluster_.simulation.run_until([&] { return cluster_.worker(worker).map().tables.contains(table_); }, 60);
    cluster_.wait([&](Done done) { cluster_.worker(worker).join(table_, std::move(done)); });
  }
  void pull(int worker) {
    Values& base = bases_[static_cast<std::size_t>(worker)];
    base.resize(kElements);
    const Result pulled =
        cluster_.wait([&](Done done) { cluster_.worker(worker).pull(table_, base, std::move(done)); });
    EXPECT_EQ(pulled.error, ErrorKind::kNone) << pulled.message;
    expect_close(base, serial_.values, "a pull");
    largest_ = 0;
    for (const float value : base) largest_ = std::max(largest_, std::abs(value));
  }
  /// `breaks` is called while the push is in flight.
  void push(
      int worker, const std::function<void()>& breaks = [] {}) {
    const Values gradient = random_gradient(random_);
    const Result pushed = cluster_.wait([&](Done done) {
      cluster_.worker(worker).push(table_, floats(gradient), std::move(done));
      breaks();
    });
    EXPECT_EQ(pushed.error, ErrorKind::kNone) << pushed.message;
    serial_.push(gradient, bases_[static_cast<std::size_t>(worker)]);
  }
  void any() {
    const auto worker = static_cast<int>(random_.below(2));
    random_.below(3) == 0 ? pull(worker) : push(worker);
  }
  void end_life(int worker) {
    cluster_.simulation.crash(Cluster::worker_name(worker));
    cluster_.simulation.start(Cluster::worker_name(worker));
    bases_[static_cast<std::size_t>(worker)].clear();
    join(worker);
  }
  void crash_primary() {
    const PartitionId id = cluster_.worker(0).map().partition_of(table_, 0);
    const auto& map = cluster_.worker(0).map();
    crashed_ = map.server(map.partitions[id].primary())->name;
    cluster_.simulation.crash(crashed_);
  }
  void heal() {
    cluster_.simulation.start(crashed_);
    EXPECT_TRUE(cluster_.settles(60));
  }
  Random& random() { return random_; }
  float largest() const { return largest_; }

 private:
  Random random_;
  Cluster cluster_;
  TableSpec spec_;
  Serial serial_;
  TableId table_ = 0;
  std::vector<Values> bases_;
  std::string crashed_;
  float largest_ = 0;
};

class DelayCompensation : public testing::TestWithParam<bool> {};

TEST_P(DelayCompensation, IsThePublishedRuleElementByElement) {
  for (std::uint64_t seed = 1; seed <= 10 && !HasFailure(); ++seed) {
    DelayedRun run(seed, GetParam());
    run.begin();
    for (int i = 0; i < 60; ++i) run.any();
    run.pull(0);
    EXPECT_LT(run.largest(), 100) << "it diverged, and tells nothing";
  }
}

TEST_P(DelayCompensation, IsUnchangedWhenPrimaryEndsDuringPush) {
  for (std::uint64_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    DelayedRun run(seed, GetParam());
    run.begin();
    run.pull(0);
    run.pull(1);
    for (int i = 0; i < 6; ++i) run.any();
    run.push(1, [&] { run.crash_primary(); });
    for (int i = 0; i < 6; ++i) run.any();
    run.heal();
    for (int i = 0; i < 6; ++i) run.any();
    run.pull(0);
  }
}

TEST_P(DelayCompensation, RestartsWithRestartedWorker) {
  DelayedRun run(3, GetParam());
  run.begin();
  for (int i = 0; i < 12; ++i) run.any();
  run.end_life(1);
  run.push(1);  // it has pulled nothing, so there is no compensation
  run.pull(1);
  run.push(0);
  run.push(1);
  run.pull(0);
}
INSTANTIATE_TEST_SUITE_P(Lambda, DelayCompensation, testing::Bool(),
                         [](const auto& adaptive) { return adaptive.param ? "Adaptive" : "Constant"; });

TEST(DelayCheckpoints, HaveTheMeanSquares) {
  test::TemporaryFolder folder;
  Random random(5);
  Serial serial(delayed(true));
  const auto push = [&](Client& client, const Values& base) {
    const Values gradient = random_gradient(random);
    client.push(client.map().table("delayed")->id, gradient).get();
    serial.push(gradient, base);
  };
  {
    RealCluster cluster(2);
    Client client({.worker = 0, .host = "here", .coordinator = cluster.address()});
    client.open_table(delayed(true));
    for (int i = 0; i < 5; ++i) push(client, {});
    client.checkpoint(folder.path());
  }
  RealCluster other(1, {.num_partitions = 4});
  Client client({.worker = 0, .host = "here", .coordinator = other.address()});
  client.restore(folder.path());
  const TableId table = client.map().table("delayed")->id;
  Values base(kElements), values(kElements);
  client.pull(table, base).get();
  for (int i = 0; i < 5; ++i) push(client, base);
  client.pull(table, values).get();
  expect_close(values, serial.values, "behind a restore");
}

TEST(DelaySpecs, RejectsInvalidSpecsWithReason) {
  const auto why = [](const std::function<void(TableSpec&)>& change) -> std::string {
    TableSpec spec = delayed(false);
    change(spec);
    try {
      check(spec);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "it was taken";
  };
  const auto expect = [](const std::string& said, const std::string& reason) {
    EXPECT_NE(said.find(reason), std::string::npos) << said;
  };
  EXPECT_EQ(why([](TableSpec&) {}), "it was taken");
  expect(why([](TableSpec& spec) { spec.delay.lambda = -1; }), "delay.lambda must be a number of at least 0");
  expect(why([](TableSpec& spec) { spec.delay = {.is_adaptive = true}; }), "needs a delay.lambda above 0");
  expect(why([](TableSpec& spec) { spec.delay.decay = 1; }), "delay.decay must be in [0, 1)");
  expect(why([](TableSpec& spec) { spec.delay.eps = 0; }), "delay.eps must be a number above 0");
  expect(why([](TableSpec& spec) { spec.optimizer.name = "sum"; }), "sum adds what is no gradient");
  expect(why([](TableSpec& spec) { spec.compression.push = "bf16"; }),
         "compression.push must be none, not bf16");
  expect(why([](TableSpec& spec) {
           spec.staleness = 0;
           spec.apply_at = ApplyAt::kClock;
         }),
         "have no delay to compensate");
  expect(why([](TableSpec& spec) {
           spec.kind = TableKind::kSparse;
           spec.num_elements = 0;
           spec.rows.elements = 4;
         }),
         "delays are compensated in dense tables");
}

}  // namespace
}  // namespace trireme::ps
