#pragma once
// Rendezvous of the ranks of a world: the store of the launcher or rank 0, and the arrival of all ranks.
// Ranks publish their settings and check that the others agree.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/wire/store_server.h"

namespace trireme::comm {

/// Text that no other process has.
std::string own_process();
/// 1, 2, 3, ... in this process.
std::uint64_t next_attempt();

/// A rank's data for the others on arrival.
struct Arrival {
  int world_size = 1;
  std::string version;
  std::string backend;
  std::string device;                ///< its kind
  std::string all_reduce = {};       ///< between hosts
  std::string network = {};          ///< of these
  std::string not_ucx_because = {};  ///< where that is "auto": why this host cannot take UCX
  std::string host_id;
  int pid = 0;
  std::string boot_id = {};                ///< of its machine, whichever host it takes itself for
  std::vector<int> cores = {};             ///< of the machine, that it may run on
  std::string process = own_process();     ///< the same for all contexts of a process, another elsewhere
  std::uint64_t attempt = next_attempt();  ///< of the process to join a world: another each time
};

/// Connects to the store of the world, within a timeout in seconds that every later wait of the connection
/// has too; the second and later connections are for other threads of the rank.
using StoreSource = std::function<c10::intrusive_ptr<c10d::Store>(double timeout_s)>;

/// The store of a world, as one of its ranks has it.
struct WorldStore {
  wire::Endpoint endpoint;
  StoreSource source;
  std::shared_ptr<wire::StoreServer> served{};  ///< by this rank; null: another process serves it
};

/// Finds the store, and serves it if this rank has to. A process serves it until it ends: ranks that leave
/// one world first find the store when they join the next. Throws CommError (port taken, another program
/// there), InvalidArgument (open to other hosts without a secret).
WorldStore open_world_store(const LaunchEnvironment& environment, const Log& log, double timeout_s);

/// Publishes `mine` in the first world of this start of the ranks that this process has not joined yet.
/// Returns the suffix of the prefix of that world's keys: "" for the first one. All ranks join worlds in one
/// order. Throws CommError where another process has this rank.
std::string claim_place(c10d::Store& store, const LaunchEnvironment& environment, const Arrival& mine);

/// Waits for all ranks of a world in which claim_place() has published `mine`, and returns their published
/// data, by rank. Either all ranks return or all throw: CommError that names the ranks that were missing at
/// the deadline, or both sides where ranks disagree about the world.
std::vector<Arrival> arrive(c10d::Store& store, const LaunchEnvironment& environment, const Arrival& mine,
                            double timeout_s);

/// Signs out, within the timeout.
void leave_world(c10d::Store& store, int rank, double timeout_s);

/// Waits until all ranks have signed out, or no other process is connected (`is_alone`). Returns the ranks
/// that have not by the timeout.
std::vector<int> wait_until_left(c10d::Store& store, int world_size, double timeout_s,
                                 const std::function<bool()>& is_alone);

/// The address of this host that faces the master: where other ranks reach this one.
std::string interface_towards(const LaunchEnvironment& environment);

}  // namespace trireme::comm
