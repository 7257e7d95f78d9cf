// Members whose coordinator is unreachable although no connection has closed.

#include "trireme/ps/internal/membership.h"

#include <gtest/gtest.h>

#include "tests/support/simulated_disk.h"
#include "tests/unit/ps/cluster.h"

namespace trireme::ps {
namespace {

/// A coordinator whose host lost its power: open connections without messages.
class SaysNothing final : public wire::Node {
 public:
  void on_start(wire::Surroundings&) override {}
  void on_connected(wire::ConnectionId, const wire::PeerIdentity&) override { ++num_connected; }
  void on_message(wire::ConnectionId, wire::Message) override {}
  void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
  void on_timer(wire::TimerId) override {}

  int num_connected = 0;
};

TEST(Membership, ASilentCoordinatorIsLookedForAgain) {
  test::Simulation simulation(3);
  simulation.add("coordinator", "coordinator", [] { return std::make_unique<SaysNothing>(); });
  simulation.add("server", "server", [] {
    return std::make_unique<Server>(ServerOptions{
        .name = "server", .host = "host", .address = "inproc:server", .coordinator = "inproc:coordinator"});
  });
  simulation.start("coordinator");
  simulation.start("server");
  // Often enough to find a replacement coordinator before it considers its members dead.
  simulation.run_for(6);
  EXPECT_GE(simulation.node<SaysNothing>("coordinator").num_connected, 3);
  // Less often after that, because a name lookup may take seconds.
  simulation.run_for(120);
  EXPECT_LE(simulation.node<SaysNothing>("coordinator").num_connected, 20);
}

/// A disk whose sync takes the given time, on the given clock.
class SlowDisk final : public wire::Disk {
 public:
  explicit SlowDisk(std::int64_t& now_ns) : now_ns_(now_ns) {}
  std::vector<std::string> names() const override { return disk_.names(); }
  std::optional<std::vector<std::byte>> read(const std::string& name) const override {
    return disk_.read(name);
  }
  void append(const std::string& name, const std::vector<std::byte>& bytes) override {
    disk_.append(name, bytes);
  }
  void sync(const std::string& name) override {
    now_ns_ += static_cast<std::int64_t>(sync_s * 1e9);
    disk_.sync(name);
  }
  void replace(const std::string& name, const std::vector<std::byte>& bytes) override {
    disk_.replace(name, bytes);
  }
  void remove(const std::string& name) override { disk_.remove(name); }

  double sync_s = 0;

 private:
  std::int64_t& now_ns_;
  test::SimulatedDisk disk_{Random(1)};
};

/// Surroundings with a manual clock. So a timer may fire before messages that were sent earlier. This happens
/// in a loop that was blocked by its disk and has more to read than it reads at a time.
class ByHand final : public wire::Surroundings, private wire::Network {
 public:
  std::int64_t now_ns() const override { return now_ns_; }
  void post(std::function<void()>) override { FAIL() << "a coordinator keeps no threads"; }
  std::uint64_t random() override { return 1; }
  wire::TimerId start_timer(double) override { return ++last_timer; }
  void stop_timer(wire::TimerId) override {}
  wire::Network& network() override { return *this; }
  SlowDisk& disk() override { return disk_; }
  void report(const std::string& line) override { reports += line + "\n"; }

  void pass(double seconds) { now_ns_ += static_cast<std::int64_t>(seconds * 1e9); }
  std::string reports;
  wire::TimerId last_timer = 0;
  wire::ConnectionId last_connection = 1000;

 private:
  wire::ConnectionId connect(const wire::Address&) override { return ++last_connection; }
  void send(wire::ConnectionId, wire::Message) override {}
  std::size_t waiting_bytes(wire::ConnectionId) const override { return 0; }
  void pause(wire::ConnectionId) override {}
  void resume(wire::ConnectionId) override {}
  void close(wire::ConnectionId) override {}

  std::int64_t now_ns_ = 1'000'000'000;
  SlowDisk disk_{now_ns_};
};

// The coordinator grants a lease in its answer, and the lease counts from the request. A delayed answer must
// not extend it.
TEST(Membership, LeaseRunsFromSentRequest) {
  ByHand surroundings;
  Membership membership("inproc:coordinator", /*heartbeat_s=*/0.5);
  membership.start(surroundings);
  const std::int64_t sent_ns = surroundings.now_ns();
  surroundings.pass(3);
  const HeartbeatReply late{.sent_ns = sent_ns, .lease_s = 2};
  EXPECT_EQ(membership.take(message_of(late)), Membership::Taken::kReply);
  EXPECT_EQ(membership.lease_until_ns(), sent_ns + 2'000'000'000);
  EXPECT_LT(membership.lease_until_ns(), surroundings.now_ns()) << "it was over before the answer came";
  const HeartbeatReply earlier{.sent_ns = sent_ns - 1'000'000'000, .lease_s = 2};
  membership.take(message_of(earlier));
  EXPECT_EQ(membership.lease_until_ns(), sent_ns + 2'000'000'000)
      << "an answer to an earlier question ends no lease";
}

Heartbeat beat_of_a_server() {
  Heartbeat heartbeat;
  heartbeat.role = Role::kServer;
  heartbeat.name = "server";
  heartbeat.address = "inproc:server";
  heartbeat.incarnation = 7;
  return heartbeat;
}

/// A coordinator with one server, on connection 1.
class OneServer : public testing::Test {
 protected:
  OneServer() {
    coordinator.on_start(surroundings);
    ticks = surroundings.last_timer;
    coordinator.on_connected(1, {.role = "server", .name = ""});
    beat();
  }
  void beat() { coordinator.on_message(1, message_of(beat_of_a_server())); }
  void commit() { coordinator.on_timer(surroundings.last_timer); }

  ByHand surroundings;
  Coordinator coordinator{CoordinatorOptions{.num_partitions = 4}};
  wire::TimerId ticks = 0;
};

TEST_F(OneServer, IsNotLateDuringCoordinatorPause) {
  commit();
  ASSERT_EQ(coordinator.map().servers.size(), 1U);
  for (int i = 0; i < 10; ++i) {  // the loop is blocked for five seconds several times
    surroundings.pass(5);
    coordinator.on_timer(ticks);
    beat();
  }
  EXPECT_EQ(surroundings.reports, "");
  for (int i = 0; i < 30; ++i) {  // a server that is silent while the coordinator listens is down
    surroundings.pass(0.1);
    coordinator.on_timer(ticks);
  }
  EXPECT_EQ(surroundings.reports, "coordinator: server server is down\n");
}

// A process that ends closes its connections before it stops listening. The kernel accepts an immediate
// reconnection, which is closed a moment later.
TEST_F(OneServer, IsAskedAgainAfterEndDuringRequest) {
  commit();
  coordinator.on_closed(1, wire::CloseCause::kByPeer, "it ended");
  const wire::ConnectionId asked = surroundings.last_connection;
  coordinator.on_connected(asked, {.role = "server", .name = ""});
  coordinator.on_closed(asked, wire::CloseCause::kByPeer, "it ended");
  const wire::ConnectionId again = surroundings.last_connection;
  EXPECT_NE(again, asked);
  EXPECT_EQ(surroundings.reports, "") << "it may have had no room for one more";
  coordinator.on_closed(again, wire::CloseCause::kUnreachable, "nobody listens");
  EXPECT_EQ(surroundings.reports, "coordinator: server server is down\n");
}

TEST_F(OneServer, IsDownWithAcceptedButUnansweredRequest) {
  commit();
  coordinator.on_closed(1, wire::CloseCause::kByPeer, "it ended");
  coordinator.on_closed(surroundings.last_connection, wire::CloseCause::kSilent, "no word of the handshake");
  EXPECT_EQ(surroundings.reports, "coordinator: server server is down\n");
}

TEST_F(OneServer, ReportsDiskThatTakesRequestSlowly) {
  surroundings.disk().sync_s = 24;
  commit();
  EXPECT_EQ(surroundings.reports,
            "coordinator: the disk took 24.0 s for a change of the map, which was announced only then: a "
            "server that ends meanwhile is missed that much later\n");
}

}  // namespace
}  // namespace trireme::ps
