#pragma once
// How the ranks of a world find each other: the store that the launcher or rank 0 serves, and the arrival of
// all ranks, who publish what they are and check that the others agree.

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/wire/store_server.h"

namespace trireme::comm {

/// What a rank tells the others on arrival.
struct Arrival {
  int world_size = 1;
  std::string version;
  std::string backend;
  std::string device;           ///< its kind
  std::string all_reduce = {};  ///< between hosts
  std::string network = {};     ///< of these
  std::string host_id;
  int pid = 0;
  std::string boot_id = {};     ///< of its machine, whichever host it takes itself for
  std::vector<int> cores = {};  ///< of the machine, that it may run on
};

/// Connects to the store of the world, within a timeout in seconds that every later wait of the connection
/// has too; the second and later connections are for other threads of the rank.
using StoreSource = std::function<c10::intrusive_ptr<c10d::Store>(double timeout_s)>;

/// The store of a world, as one of its ranks has it.
struct WorldStore {
  wire::Endpoint endpoint;
  StoreSource source;
  std::shared_ptr<wire::StoreServer> served{};  ///< by this rank; null: somebody else does
};

/// Finds out where the store is, and serves it if that is this rank's duty. Throws CommError (port taken,
/// another program there), InvalidArgument (open to other hosts without a secret).
WorldStore open_world_store(const LaunchEnvironment& environment, const Log& log, double timeout_s);

/// Publishes `mine` and returns everybody's, by rank. Throws CommError that names the missing ranks at the
/// deadline, or both sides where ranks disagree about the world.
std::vector<Arrival> arrive(c10d::Store& store, const LaunchEnvironment& environment, const Arrival& mine,
                            double timeout_s);

/// Signs out, within the timeout.
void leave_world(c10d::Store& store, int rank, double timeout_s);

/// Which of the ranks have not signed out.
std::vector<int> still_here(c10d::Store& store, int world_size);

/// The address of this host that faces the master: where other ranks reach this one.
std::string interface_towards(const LaunchEnvironment& environment);

}  // namespace trireme::comm
