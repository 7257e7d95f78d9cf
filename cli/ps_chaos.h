#pragma once
// A parameter server of real processes, some of which are killed and frozen while workers push, or whose
// links fail: whether every push counts exactly once, and for how long pushes had to wait.

#include <cstdint>
#include <iosfwd>
#include <string>

namespace trireme::cli {

struct PsChaosOptions {
  int num_seeds = 1;
  std::uint64_t first_seed = 1;
  int num_servers = 3;
  int num_workers = 2;
  int num_replicas = 2;
  std::string kinds;   ///< of faults, by commas; each once in a cluster, in an order of its seed; empty: all
  double minutes = 0;  ///< one cluster under mixed load and random faults of those kinds; 0: each kind once
  bool json = false;
};

/// A line, or an element of JSON, for each seed. Returns an exit code: not zero when anything was lost,
/// counted twice, or not answered, or when a process grew (chaos/growth.h).
int run_ps_chaos(const PsChaosOptions& options, std::ostream& out);

}  // namespace trireme::cli
