#pragma once
// Assignment of cores to ranks of one machine (ContextOptions::pin, comm.pin), from the cores that each may
// use. Ranks that the launcher (mpirun, srun, taskset) has bound to cores of their own stay there. Others
// divide their common cores. No rank gets a core that it could not use before. plan_pins() is pure.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trireme/topology/core_places.h"

namespace trireme::comm {

/// "none": wherever the kernel puts them; "cores": on cores of their own, near each other; "numa": on all
/// cores of the NUMA nodes that those are in.
std::vector<std::string> pin_names();
/// Throws InvalidArgument that suggests the nearest.
void check_pin(const std::string& name);

/// A rank of a machine and the cores that it may run on.
struct RankCores {
  int rank = 0;
  std::vector<int> cores = {};
};

/// Result of the assignment, the same on all ranks of the machine.
struct PinPlan {
  std::vector<RankCores> pinned = {};  ///< with the cores that they get; others stay as they are
  std::string words = {};              ///< to be logged; empty: nothing
  bool is_rejected = false;            ///< no rank is pinned, although that was requested: a warning
};

/// `places` returns the sockets and physical cores of cores.
PinPlan plan_pins(const std::string& pin, std::span<const RankCores> ranks,
                  const std::function<std::vector<topology::CorePlace>(std::span<const int>)>& places);

}  // namespace trireme::comm
