#pragma once
// What a Context holds.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/group_state.h"

namespace trireme::comm {

struct Context::State {
  /// Collective: arrival of all ranks at the store, and the group of all.
  static std::unique_ptr<State> make(const LaunchEnvironment& environment, const ContextOptions& options,
                                     c10::intrusive_ptr<c10d::Store> store,
                                     std::shared_ptr<telemetry::StatusPage> status);
  /// Empty when this rank is no member.
  std::optional<Group> make_group(const std::vector<int>& world_ranks, const std::string& name);
  int torch_threads() const;

  LaunchEnvironment environment;
  ContextOptions options;
  Log log;
  std::shared_ptr<telemetry::StatusPage> status;
  c10::intrusive_ptr<c10d::Store> store;
  std::vector<std::string> host_ids;  ///< by world rank
  std::string interface_addr;
  std::string backend;  ///< never "auto"
  std::vector<std::weak_ptr<Group::State>> groups;
  std::set<std::string> group_names{"world"};
  std::optional<Group> world;
};

}  // namespace trireme::comm
