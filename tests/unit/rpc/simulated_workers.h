#pragma once
// Endpoints as nodes of a simulation: worker 1 is at "inproc:w1", and so on.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "tests/support/simulation.h"
#include "trireme/base/text.h"
#include "trireme/rpc/endpoint.h"
#include "trireme/wire/fields.h"

namespace trireme::test {

struct Number {
  std::uint64_t value = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.value);
  }
};

class SimulatedWorker;

class SimulatedWorkers {
 public:
  struct Gone {
    bool left = false;
    std::string reason;
  };

  SimulatedWorkers(rpc::WorkerId count, std::uint64_t seed);
  SimulatedWorker& operator[](rpc::WorkerId worker) {
    return simulation_.node<SimulatedWorker>(name(worker));
  }
  Simulation& simulation() { return simulation_; }
  void crash(rpc::WorkerId worker) { simulation_.crash(name(worker)); }
  void freeze(rpc::WorkerId worker) { simulation_.freeze(name(worker)); }
  void thaw(rpc::WorkerId worker) { simulation_.thaw(name(worker)); }
  void cut(rpc::WorkerId a, rpc::WorkerId b) { simulation_.cut(name(a), name(b)); }
  /// Replaces the process of a worker by a new process with another number.
  void replace(rpc::WorkerId worker, rpc::WorkerId by) {
    simulation_.crash(name(worker));
    numbers_[worker] = by;
    simulation_.start(name(worker));
  }

  std::function<void(rpc::WorkerId at, rpc::WorkerId from, const wire::Message&)> on_message;
  std::map<std::pair<rpc::WorkerId, rpc::WorkerId>, Gone> gone;  ///< by detecting and lost worker

 private:
  static std::string name(rpc::WorkerId worker) { return text("w", worker); }

  std::map<rpc::WorkerId, rpc::WorkerId> numbers_;  ///< by place
  Simulation simulation_;
};

class SimulatedWorker final : public wire::Node, public rpc::EndpointEvents {
 public:
  SimulatedWorker(rpc::WorkerId self, SimulatedWorkers& all)
      : self_(self),
        all_(all),
        endpoint_({.self = {.id = self},
                   .address_of = [](rpc::WorkerId worker) { return text("inproc:w", worker); },
                   .lost_after_s = 15},
                  *this) {}
  rpc::Endpoint& endpoint() { return endpoint_; }

  void on_start(wire::Surroundings& around) override { endpoint_.on_start(around); }
  void on_connected(wire::ConnectionId id, const wire::PeerIdentity& peer) override {
    endpoint_.on_connected(id, peer);
  }
  void on_message(wire::ConnectionId id, wire::Message message) override {
    endpoint_.on_message(id, std::move(message));
  }
  void on_closed(wire::ConnectionId id, wire::CloseCause cause, const std::string& reason) override {
    endpoint_.on_closed(id, cause, reason);
  }
  void on_timer(wire::TimerId timer) override { endpoint_.on_timer(timer); }

  void on_message(rpc::WorkerId from, wire::Message message) override {
    if (all_.on_message) all_.on_message(self_, from, message);
  }
  void on_gone(rpc::WorkerId worker, bool left, const std::string& reason) override {
    all_.gone[{self_, worker}] = {left, reason};
  }

 private:
  const rpc::WorkerId self_;
  SimulatedWorkers& all_;
  rpc::Endpoint endpoint_;
};

inline SimulatedWorkers::SimulatedWorkers(rpc::WorkerId count, std::uint64_t seed) : simulation_(seed) {
  for (rpc::WorkerId worker = 1; worker <= count; ++worker) {
    numbers_[worker] = worker;
    simulation_.add(name(worker), "worker",
                    [this, worker] { return std::make_unique<SimulatedWorker>(numbers_.at(worker), *this); });
    simulation_.start(name(worker));
  }
}

}  // namespace trireme::test
