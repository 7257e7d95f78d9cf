// The first worker cannot complete a step of all workers before the expected workers have joined.

#include "trireme/ps/internal/expected_workers.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/unit/ps/cluster.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/error.h"
#include "trireme/ps/client.h"

namespace trireme::ps {
namespace {

using Values = std::vector<float>;

class StepsOfExpectedWorkers : public testing::Test {
 protected:
  void begin(TableSpec spec, int num_workers = 2) {
    cluster_.emplace(11, ClusterOptions{.num_workers = num_workers,
                                        .expected_workers = static_cast<std::uint32_t>(num_workers)});
    spec.num_elements = kElements;
    spec.chunk_elements = 4;  // of several partitions
    table_ = cluster_->create(0, spec);
    ASSERT_TRUE(cluster_->settles(10));
  }
  ClientNode& worker(int i) { return cluster_->worker(i); }
  void join(int i) {
    ASSERT_EQ(cluster_->wait([&](Done done) { worker(i).join(table_, std::move(done)); }).error,
              ErrorKind::kNone);
  }
  void step(int i) {
    worker(i).push(table_, floats(Values(kElements, 1)), [](const Result&) {});
    worker(i).tick();
  }
  /// Values of a pull. Not there while it is in flight.
  struct Pulled {
    Values values = Values(kElements);
    bool is_there = false;
  };
  std::shared_ptr<Pulled> pull(int i) {
    auto pulled = std::make_shared<Pulled>();
    worker(i).pull(table_, pulled->values, [pulled](const Result& result) {
      EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
      pulled->is_there = true;
    });
    return pulled;
  }
  bool comes(const std::shared_ptr<Pulled>& pulled, double within_s = 5) {
    return cluster_->simulation.run_until([&] { return pulled->is_there; }, within_s);
  }
  void restart(int i) {
    cluster_->simulation.crash(Cluster::worker_name(i));
    cluster_->simulation.start(Cluster::worker_name(i));
  }
  void leave(int i) {
    ASSERT_EQ(cluster_->wait([&](Done done) { worker(i).leave(std::move(done)); }).error, ErrorKind::kNone);
  }

  static constexpr std::size_t kElements = 20;
  std::optional<Cluster> cluster_;
  TableId table_ = 0;
};

TEST_F(StepsOfExpectedWorkers, AreBulkSynchronousFromFirstStep) {
  for (const ApplyAt apply_at : {ApplyAt::kArrival, ApplyAt::kClock}) {
    begin({.name = "sums", .staleness = 0, .apply_at = apply_at});
    join(0);
    step(0);
    const auto first = pull(0);
    EXPECT_FALSE(comes(first)) << "the other worker has not joined";
    join(1);
    EXPECT_FALSE(comes(first)) << "it has not ended its step";
    step(1);
    ASSERT_TRUE(comes(first));
    EXPECT_EQ(first->values, Values(kElements, 2));
  }
}

TEST_F(StepsOfExpectedWorkers, StayWithinStalenessBound) {
  begin({.name = "sums", .staleness = 2});
  join(0);
  for (int i = 0; i < 2; ++i) {
    step(0);
    EXPECT_TRUE(comes(pull(0)));
  }
  step(0);
  const auto third = pull(0);
  EXPECT_FALSE(comes(third));
  join(1);
  step(1);
  EXPECT_TRUE(comes(third));
}

TEST_F(StepsOfExpectedWorkers, DoNotWaitWithoutClock) {
  begin({.name = "sums", .staleness = kAsynchronous});
  join(0);
  for (int i = 0; i < 5; ++i) step(0);
  EXPECT_TRUE(comes(pull(0)));
}

TEST_F(StepsOfExpectedWorkers, CountThoseThatHaveLeft) {
  begin({.name = "sums", .staleness = 3}, 3);
  join(0);
  step(0);
  leave(0);
  join(1);
  join(2);
  for (int i = 0; i < 5; ++i) {
    step(1);
    step(2);
  }
  EXPECT_TRUE(comes(pull(1)));
  leave(2);
  for (int i = 0; i < 5; ++i) step(1);
  EXPECT_TRUE(comes(pull(1))) << "who has left is not waited for";
}

TEST_F(StepsOfExpectedWorkers, OutliveTheServersThatCountThem) {
  begin({.name = "sums", .staleness = 0});
  join(0);
  step(0);
  const auto first = pull(0);
  EXPECT_FALSE(comes(first));
  cluster_->simulation.crash(Cluster::server_name(0));
  EXPECT_FALSE(comes(first, 10));
  join(1);
  step(1);
  ASSERT_TRUE(comes(first, 20));
  EXPECT_EQ(first->values, Values(kElements, 2));
}

TEST_F(StepsOfExpectedWorkers, BeginTogetherInASecondTrainingToo) {
  begin({.name = "sums", .staleness = 0});
  for (const float sum : {2.F, 4.F}) {
    join(0);
    step(0);
    const auto first = pull(0);
    EXPECT_FALSE(comes(first)) << sum;
    join(1);
    step(1);
    ASSERT_TRUE(comes(first)) << sum;
    EXPECT_EQ(first->values, Values(kElements, sum));
    for (const int i : {0, 1}) leave(i);
    for (const int i : {0, 1}) restart(i);
    ASSERT_TRUE(cluster_->settles(20));
  }
}

TEST(ExpectedWorkers, AreThoseOfTheEnvironment) {
  RealCluster cluster(1);
  ::setenv("TRIREME_PS_COORDINATOR", cluster.address().c_str(), 1);
  ::setenv("WORLD_SIZE", "2", 1);
  const auto client_of = [](const char* rank) {
    ::setenv("RANK", rank, 1);
    return Client::from_environment({.timeout_s = 10});
  };
  const auto first = client_of("0"), second = client_of("1");
  const TableSpec spec{.name = "w", .num_elements = 1, .optimizer = {.name = "sum"}};
  const TableId table = first->open_table(spec);
  const Values one(1, 1);
  Values value(1);
  first->push(table, one).get();
  first->tick();
  const Pending pulled = first->pull(table, value);
  EXPECT_FALSE(pulled.wait_for(0.5).has_value());
  second->open_table(spec);
  second->push(table, one).get();
  second->tick();
  pulled.get();
  EXPECT_EQ(value, Values(1, 2));
  ::setenv("WORLD_SIZE", "two", 1);
  EXPECT_THROW(client_of("0"), InvalidArgument);
}

TEST(ExpectedWorkers, AreNamedWhereTheyDoNotCome) {
  RealCluster cluster(1);
  ClientOptions options{.worker = 0, .host = "here", .coordinator = cluster.address(), .timeout_s = 1};
  options.num_workers = 3;
  Client client(options);
  const TableId table = client.open_table({.name = "w", .num_elements = 1});
  client.tick();
  Values value(1);
  try {
    client.pull(table, value).get();
    FAIL() << "the others have not come";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("3 workers have opened the table"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme::ps
