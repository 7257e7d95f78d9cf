#pragma once
// The counters of a process and of its threads in /proc, of its control groups, and of its host. Two readings
// give rates. Reading takes microseconds per thread and waits for no disk. Paths come from the kernel alone.
// Functions without state; thread-safe.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/autopsy/evidence.h"
#include "trireme/base/control_groups.h"

namespace trireme::autopsy {

/// One thread.
struct ThreadReadings {
  std::string name;
  char state = '?';
  std::string call;  ///< the line of /proc/PID/task/TID/syscall: the same twice, the same call
};

/// Counters of a process.
struct ProcessReadings {
  double at_s = 0;  ///< on the monotonic clock; 0: there was no such process
  char state = '?';
  double cpu_s = 0;          ///< of all threads
  double first_cpu_s = 0;    ///< of the first thread
  double first_queue_s = 0;  ///< in which it was ready to run and had no core
  std::uint64_t major_faults = 0;
  std::uint64_t bytes = 0;  ///< read and written, disks and others
  std::uint64_t swapped_bytes = 0;
  double throttled_s = 0;  ///< of its control group
  std::map<int, ThreadReadings> threads;
};

/// Empty of a process that is gone.
ProcessReadings read_process(int pid);
/// Whether the first thread of the process runs or is ready to.
bool is_ready_to_run(int pid);

/// A control group that may limit the memory of a process.
struct MemoryGroup {
  ControlGroup group;
  std::int64_t oom_kills = 0;     ///< of its processes, by any limit and for the host; negative: not counted
  std::int64_t limit_hits = 0;    ///< allocations that its limit did not allow
  std::uint64_t limit_bytes = 0;  ///< 0: none
};
/// From the innermost group to the outermost; those without the files of the controller are left out.
std::vector<MemoryGroup> read_memory_groups(int pid, const std::filesystem::path& root = "/");
/// The same groups as they are now.
std::vector<MemoryGroup> read_again(const std::vector<MemoryGroup>& groups);
/// The group of `rank`, and the kills for lack of memory between the two readings. A kill counts as one by
/// the limit of a group if its limit was reached meanwhile: the kernel counts those for the host in the
/// group, too.
void describe_memory(RankEvidence& rank, const std::vector<MemoryGroup>& before,
                     const std::vector<MemoryGroup>& now);

/// Counters of the whole host.
struct HostReadings {
  double at_s = 0;
  std::int64_t oom_kills = 0;
  std::uint64_t swapped_pages = 0;  ///< in and out
};
/// As they are now.
HostReadings read_host();

/// The process part of `rank`, whose pid is set, from two readings; `before` may be empty.
void describe_process(RankEvidence& rank, const ProcessReadings& before, const ProcessReadings& now);
/// The host's part since `started`, with the rates since `before`.
HostEvidence describe_host(const HostReadings& started, const HostReadings& before, const HostReadings& now);

}  // namespace trireme::autopsy
