#pragma once
// The live runs of this host, found through /proc: each rank keeps a descriptor of its status page open, and
// the kernel lets processes of the same user open it. There is no socket and no file to protect. Ranks of
// other hosts are not seen here. Reading changes nothing. One thread.

#include <memory>
#include <string>
#include <vector>

#include "trireme/telemetry/run_view.h"

namespace trireme::telemetry {

/// A rank that runs.
struct LiveRank {
  int pid = 0;
  std::shared_ptr<const StatusPage> page = {};
};

/// Ranks that were started together.
struct LiveRun {
  std::string run = {};       ///< folder; empty: a program without one
  int launcher_pid = 0;       ///< the parent of its first rank
  bool is_launched = false;   ///< by `trireme launch` or a command with -n, which may start the ranks again
  std::uint64_t started = 0;  ///< of its first rank, in clock ticks since the boot
  std::vector<LiveRank> ranks = {};
};

/// Those that this process may read, the newest last.
std::vector<LiveRun> find_live_runs();

/// The kernel's values for that process.
ProcessSample sample_process(int pid);
HostPressure sample_pressure();
/// Of these ranks; those whose process has ended are left out.
RunSample sample_run(const std::vector<LiveRank>& ranks);

}  // namespace trireme::telemetry
