// Guarantees of the simulator to nodes, which are those of sockets: posted work, and messages on a paused
// connection.

#include "tests/support/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace trireme::test {
namespace {

/// Runs the test's functions, and records received messages.
class Scribe final : public wire::Node {
 public:
  using OnMessage = std::function<void(Scribe&, wire::ConnectionId, std::uint16_t)>;
  explicit Scribe(std::vector<int>& heard, OnMessage on_message = {})
      : heard_(heard), on_message_(std::move(on_message)) {}
  wire::Surroundings& around() { return *surroundings_; }
  void hear(int what) { heard_.push_back(what); }

  void on_start(wire::Surroundings& surroundings) override { surroundings_ = &surroundings; }
  void on_connected(wire::ConnectionId, const wire::PeerIdentity&) override {}
  void on_message(wire::ConnectionId from, wire::Message message) override {
    hear(message.kind);
    if (on_message_) on_message_(*this, from, message.kind);
  }
  void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
  void on_timer(wire::TimerId) override {}

 private:
  std::vector<int>& heard_;
  OnMessage on_message_;
  wire::Surroundings* surroundings_ = nullptr;
};

TEST(Simulation, RunsPostedWorkLaterInOrder) {
  std::vector<int> heard;
  Simulation simulation(1);
  simulation.add("a", "scribe", [&] { return std::make_unique<Scribe>(heard); });
  simulation.start("a");
  auto& node = simulation.node<Scribe>("a");
  for (int i = 0; i < 20; ++i) node.around().post([&node, i] { node.hear(i); });
  EXPECT_TRUE(heard.empty()) << "not from within the call";
  simulation.run_for(1);
  ASSERT_EQ(heard.size(), 20U);
  EXPECT_TRUE(std::ranges::is_sorted(heard));
}

TEST(Simulation, DropsWorkOfEndedProcess) {
  std::vector<int> heard;
  Simulation simulation(1);
  simulation.add("a", "scribe", [&] { return std::make_unique<Scribe>(heard); });
  simulation.start("a");
  simulation.node<Scribe>("a").around().post([&] { heard.push_back(1); });
  simulation.crash("a");
  simulation.start("a");
  simulation.run_for(1);
  EXPECT_TRUE(heard.empty());
}

TEST(Simulation, DeliversNothingAfterRenewedPause) {
  std::vector<int> heard;
  Simulation simulation(1);
  const auto pauses = [](Scribe& node, wire::ConnectionId from, std::uint16_t) {
    node.around().network().pause(from);
  };
  simulation.add("a", "scribe", [&] { return std::make_unique<Scribe>(heard, pauses); });
  simulation.add("b", "scribe", [&] { return std::make_unique<Scribe>(heard); });
  simulation.start("a");
  simulation.start("b");
  auto& network = simulation.node<Scribe>("b").around().network();
  const wire::ConnectionId to_a = network.connect("inproc:a");
  simulation.run_for(1);
  for (std::uint16_t kind = 1; kind <= 5; ++kind) network.send(to_a, {.kind = kind});
  for (int i = 1; i <= 5; ++i) {
    simulation.run_for(1);
    EXPECT_EQ(heard.size(), static_cast<std::size_t>(i));
    simulation.node<Scribe>("a").around().network().resume(1);
  }
  EXPECT_EQ(heard, (std::vector<int>{1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace trireme::test
