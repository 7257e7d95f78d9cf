#pragma once
// Which cores ranks of one machine have (ContextOptions::pin, comm.pin), from what each may run on: ranks
// that the launcher (mpirun, srun, taskset) has bound to cores of their own stay there, others share out what
// they may run on together. Nobody gets a core that he could not run on before. plan_pins() is pure.

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

/// What is done, the same on all ranks of the machine.
struct PinPlan {
  std::vector<RankCores> pinned = {};  ///< with the cores that they get; others stay as they are
  std::string words = {};              ///< to be said; empty: nothing
  bool is_rejected = false;            ///< nobody is pinned, although that was asked for: a warning
};

/// `places` tells of cores where they sit.
PinPlan plan_pins(const std::string& pin, std::span<const RankCores> ranks,
                  const std::function<std::vector<topology::CorePlace>(std::span<const int>)>& places);

}  // namespace trireme::comm
