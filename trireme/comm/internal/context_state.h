#pragma once
// The implementation of a Context.

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trireme/base/host.h"
#include "trireme/comm/context.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/internal/network_choice.h"
#include "trireme/comm/internal/pinned_threads.h"
#include "trireme/comm/internal/rendezvous.h"
#include "trireme/comm/internal/watcher.h"

namespace trireme::comm {

struct Context::State {
  /// Collective: arrival of all ranks at the store, and the group of all.
  static std::unique_ptr<State> make(const LaunchEnvironment& environment, const ContextOptions& options,
                                     const StoreSource& stores,
                                     std::shared_ptr<telemetry::StatusPage> status);
  /// Fails all groups, here and on the other ranks.
  void fail_all(const std::string& cause);
  /// Announces its end; a rank that serves the store stays until the others have left, too.
  void leave();
  /// With options.pin, by the cores that all ranks of this machine may run on. Afterwards they have the
  /// assigned cores.
  void pin();
  /// Over the backend of that name. Empty when this rank is no member.
  std::optional<Group> make_group(const std::vector<int>& world_ranks, const std::string& name,
                                  const std::string& by);
  /// With options.network, or by measurement. Collective over the world.
  void choose_network();
  std::string backend_of_part(const std::vector<int>& world_ranks) const;
  int torch_threads() const;
  /// Of this machine's cores, shared with the ranks that may run on the same ones.
  CoreShare share_of_cores() const;
  std::vector<std::string> hosts_of(const std::vector<int>& world_ranks) const;
  /// The backend for the tensors of that group: the CPU's, and the device's.
  c10::intrusive_ptr<c10d::Backend> connect(const BackendRequest& request, const std::string& by) const;

  LaunchEnvironment environment;
  ContextOptions options;
  Log log;
  std::shared_ptr<telemetry::StatusPage> status;
  std::shared_ptr<wire::StoreServer> served;   ///< the store of the world, when it is this rank's duty
  c10::intrusive_ptr<c10d::Store> connection;  ///< to it
  c10::intrusive_ptr<c10d::Store> store;       ///< the same with the keys of this start of the world
  std::string interface_addr;
  std::string backend;    ///< never "auto"
  NetworkChoice network;  ///< the same
  c10::Device device = c10::kCPU;
  std::vector<Arrival> arrivals;  ///< by world rank
  const std::shared_ptr<AllReduceBook> all_reduces = std::make_shared<AllReduceBook>();
  std::shared_ptr<StatusLine> status_line;
  std::unique_ptr<Watcher> watcher;       ///< empty in a world of one
  std::unique_ptr<PinnedThreads> pinned;  ///< null: threads run where they might before
  int fewest_pinned = 0;                  ///< cores of a pinned rank of this machine; 0: none is pinned
  bool failed = false;
  telemetry::Trace* trace = nullptr;
  std::set<std::string> group_names{"world"};
  std::optional<Group> world;
  std::optional<Group> self;
};

}  // namespace trireme::comm
