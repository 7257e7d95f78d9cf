#pragma once
// How the ranks of a world find each other: the store that rank 0 serves, and the arrival of all ranks, who
// publish what they are and check that the others agree.

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/comm/launch_environment.h"

namespace trireme::comm {

/// What a rank tells the others on arrival.
struct Arrival {
  int world_size = 1;
  std::string version;
  std::string backend;
  std::string host_id;
  int pid = 0;
};

/// Serves (rank 0, first connection) or joins the store of the environment.
class StoreConnector {
 public:
  explicit StoreConnector(LaunchEnvironment environment) : environment_(std::move(environment)) {}
  /// A connection whose every wait, its own making included, ends by the timeout. Throws CommError: port
  /// taken, nobody there.
  c10::intrusive_ptr<c10d::Store> connect(double timeout_s);

 private:
  LaunchEnvironment environment_;
  bool serves_ = false;
};

/// Connects to the store of the world, within a timeout in seconds that every later wait of the connection
/// has too; the second and later connections are for other threads of the rank.
using StoreSource = std::function<c10::intrusive_ptr<c10d::Store>(double timeout_s)>;

/// Publishes `mine` and returns everybody's, by rank. Throws CommError that names the missing ranks at the
/// deadline, or both sides where ranks disagree about the world.
std::vector<Arrival> arrive(c10d::Store& store, const LaunchEnvironment& environment, const Arrival& mine,
                            double timeout_s);

/// Signs out. Rank 0, which serves the store, waits until those `to_wait_for` have, at most `timeout_s`.
void leave_world(c10d::Store& store, const LaunchEnvironment& environment,
                 const std::vector<int>& to_wait_for, double timeout_s);

/// The address of this host that faces the master: where other ranks reach this one.
std::string interface_towards(const LaunchEnvironment& environment);

}  // namespace trireme::comm
