#pragma once
// Entries of the kernel's log on processes that it killed for lack of memory. Many hosts let only root read
// it. Functions without state; thread-safe.

#include <optional>
#include <string>
#include <string_view>

#include "trireme/base/file_descriptor.h"

namespace trireme::autopsy {

struct MemoryKill {
  bool by_limit = false;  ///< of a control group; else the host had no more memory
  std::string group;      ///< that group, as the log names it; empty: it does not
};

/// Of the records about that process in lines such as
/// "oom-kill:constraint=CONSTRAINT_MEMCG,...,oom_memcg=/job, task_memcg=/job,task=train,pid=4711,uid=0" and
/// "Memory cgroup out of memory: Killed process 4711 (train) ...". The last one counts.
std::optional<MemoryKill> find_memory_kill(std::string_view log, int pid);

/// The records of this host about kills for lack of memory from now on. One thread.
class MemoryKillLog {
 public:
  MemoryKillLog();
  /// All since the object was made; none where the log may not be read, or its numbers of processes are not
  /// those of this process: in a container.
  std::optional<std::string> read();

 private:
  FileDescriptor log_;
  std::string records_;
};

}  // namespace trireme::autopsy
