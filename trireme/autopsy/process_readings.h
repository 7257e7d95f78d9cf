#pragma once
// The counters of a process and of its threads in /proc, of its control groups, and of its host. Two readings
// give rates. Reading takes microseconds per thread and waits for no disk. Paths come from the kernel alone.
// Functions without state; thread-safe.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/autopsy/evidence.h"

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

/// The control group that limits the memory of a process.
struct MemoryGroup {
  std::string path;    ///< as in /proc/PID/cgroup; empty: none
  std::string folder;  ///< of its files
  int version = 2;
  std::int64_t oom_kills = 0;
  std::uint64_t limit_bytes = 0;  ///< 0: none
};
/// Empty where no group limits it.
MemoryGroup read_memory_group(int pid);
/// The same group as it is now.
MemoryGroup read_group(const MemoryGroup& group);

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
