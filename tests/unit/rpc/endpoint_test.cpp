// Links between workers, in one thread under virtual time. Messages are lost, duplicated, delayed and cut
// off.

#include "trireme/rpc/endpoint.h"

#include <gtest/gtest.h>

#include "tests/unit/rpc/simulated_workers.h"

namespace trireme::rpc {
namespace {

using test::SimulatedWorkers;

constexpr std::uint16_t kNumber = 100;

TEST(Endpoint, MessagesArriveOnceInOrderDespiteReconnects) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SimulatedWorkers workers(3, seed);
    workers.simulation().set_faults({.drop = 0.05, .duplicate = 0.05, .reorder = 0.05});
    std::map<std::pair<WorkerId, WorkerId>, std::uint64_t> sent, received;
    workers.on_message = [&](WorkerId at, WorkerId from, const wire::Message& message) {
      ASSERT_EQ(message.kind, kNumber);
      const std::uint64_t number = wire::decode<test::Number>(message.head)->value;
      ASSERT_EQ(number, (++received[{from, at}])) << "seed " << seed;
    };
    Random random(seed);
    for (int i = 0; i < 300; ++i) {
      const auto from = static_cast<WorkerId>(1 + random.below(3));
      const auto to = static_cast<WorkerId>(1 + (from + random.below(2)) % 3);
      const std::uint64_t number = ++sent[{from, to}];
      workers[from].endpoint().send(to, {.kind = kNumber, .head = wire::encode(test::Number{number})});
      if (random.below(40) == 0) workers.cut(1, 2);
      if (random.below(20) == 0) workers.simulation().heal_all();
      workers.simulation().run_for(0.01 * random.uniform());
    }
    workers.simulation().heal_all();
    ASSERT_TRUE(workers.simulation().run_until([&] { return received == sent; }, 100)) << "seed " << seed;
    EXPECT_TRUE(workers.gone.empty()) << "seed " << seed;
  }
}

TEST(Endpoint, EverythingIsAcknowledgedAndForgotten) {
  SimulatedWorkers workers(2, 1);
  for (int i = 0; i < 50; ++i) workers[1].endpoint().send(2, {.kind = kNumber});
  EXPECT_FALSE(workers[1].endpoint().all_acknowledged());
  EXPECT_TRUE(workers.simulation().run_until([&] { return workers[1].endpoint().all_acknowledged(); }, 5));
}

TEST(Endpoint, PeersAndWatchersNoticeEndedWorker) {
  SimulatedWorkers workers(3, 1);
  workers[1].endpoint().send(2, {.kind = kNumber});
  workers[3].endpoint().watch(2);
  workers.simulation().run_for(1);
  workers.crash(2);
  ASSERT_TRUE(workers.simulation().run_until([&] { return workers.gone.size() == 2; }, 20));
  EXPECT_FALSE((workers.gone.at({1, 2}).left));
  EXPECT_FALSE((workers.gone.at({3, 2}).left));
}

/// Two workers. The second is known to the first and is then frozen.
struct FrozenWorker {
  FrozenWorker() {
    workers.on_message = [this](WorkerId, WorkerId, const wire::Message&) { ++received; };
    workers[1].endpoint().send(2, {.kind = kNumber});
    workers.simulation().run_for(1);
    workers.freeze(2);
  }
  SimulatedWorkers workers{2, 1};
  std::uint64_t received = 0;
};

TEST(Endpoint, BrieflyFrozenWorkerIsAwaited) {
  FrozenWorker frozen;
  auto& [workers, received] = frozen;
  workers[1].endpoint().send(2, {.kind = kNumber});
  workers.simulation().run_for(5);
  workers.thaw(2);
  EXPECT_TRUE(workers.simulation().run_until([&] { return received == 2; }, 5));
  EXPECT_TRUE(workers.gone.empty());
}

// Its host accepts connections for it. A missing answer is no sign that the worker has ended.
TEST(Endpoint, FrozenWorkerWithoutConnectionGetsFullTimeout) {
  FrozenWorker frozen;
  auto& [workers, received] = frozen;
  workers.cut(1, 2);
  workers[1].endpoint().send(2, {.kind = kNumber});
  workers.simulation().run_for(10);  // the connection is broken after 8
  workers.simulation().heal_all();
  workers.simulation().run_for(18);
  EXPECT_TRUE(workers.gone.empty()) << workers.gone.begin()->second.reason;
  workers.thaw(2);
  EXPECT_TRUE(workers.simulation().run_until([&] { return received == 2; }, 10));
  EXPECT_TRUE(workers.gone.empty());

  workers.freeze(2);
  workers.cut(1, 2);
  workers[1].endpoint().send(2, {.kind = kNumber});
  workers.simulation().run_for(10);
  workers.simulation().heal_all();
  EXPECT_TRUE(workers.simulation().run_until([&] { return workers.gone.contains({1, 2}); }, 60));
}

TEST(Endpoint, PermanentlyFrozenWorkerEndsOnBothSides) {
  SimulatedWorkers workers(2, 1);
  workers[1].endpoint().send(2, {.kind = kNumber});
  workers[2].endpoint().watch(1);
  workers.simulation().run_for(1);
  workers.freeze(2);
  workers[1].endpoint().send(2, {.kind = kNumber});
  ASSERT_TRUE(workers.simulation().run_until([&] { return workers.gone.contains({1, 2}); }, 60));
  EXPECT_NE(workers.gone.at({1, 2}).reason.find("frozen"), std::string::npos);
  workers.thaw(2);
  EXPECT_TRUE(workers.simulation().run_until([&] { return workers.gone.contains({2, 1}); }, 60));
}

TEST(Endpoint, AnotherProcessAtAddressIsNotWorker) {
  SimulatedWorkers workers(2, 1);
  std::uint64_t received = 0;
  workers.on_message = [&](WorkerId, WorkerId, const wire::Message&) { ++received; };
  workers[1].endpoint().send(2, {.kind = kNumber});
  workers.simulation().run_for(1);
  workers.replace(2, 7);
  workers[1].endpoint().send(2, {.kind = kNumber});
  ASSERT_TRUE(workers.simulation().run_until([&] { return workers.gone.contains({1, 2}); }, 20));
  EXPECT_NE(workers.gone.at({1, 2}).reason.find("another process"), std::string::npos);
  EXPECT_EQ(received, 1u);
}

TEST(Endpoint, AGoodByeComesAfterEverythingElse) {
  SimulatedWorkers workers(2, 3);
  workers.simulation().set_faults({.drop = 0.1, .duplicate = 0.1});
  std::uint64_t received = 0;
  workers.on_message = [&](WorkerId, WorkerId, const wire::Message&) { ++received; };
  for (int i = 0; i < 20; ++i) workers[1].endpoint().send(2, {.kind = kNumber});
  workers[1].endpoint().say_good_bye();
  ASSERT_TRUE(workers.simulation().run_until([&] { return workers.gone.contains({2, 1}); }, 60));
  EXPECT_TRUE((workers.gone.at({2, 1}).left));
  EXPECT_EQ(received, 20u);
  EXPECT_TRUE(workers.simulation().run_until([&] { return workers[1].endpoint().all_acknowledged(); }, 60));
}

}  // namespace
}  // namespace trireme::rpc
