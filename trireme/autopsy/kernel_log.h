#pragma once
// What the kernel's log tells of processes that it killed for lack of memory. Many hosts let only root read
// it. Functions without state; thread-safe.

#include <optional>
#include <string>
#include <string_view>

namespace trireme::autopsy {

struct MemoryKill {
  std::string group;  ///< the control group whose limit was reached; empty: the host had no more memory
};

/// Of the record about that process in lines such as
/// "oom-kill:constraint=CONSTRAINT_MEMCG,...,oom_memcg=/job, task_memcg=/job,task=train,pid=4711,uid=0". The
/// last one counts.
std::optional<MemoryKill> find_memory_kill(std::string_view log, int pid);

/// The records about kills for lack of memory in the log of this host; none where it may not be read.
std::optional<std::string> read_memory_kills();

}  // namespace trireme::autopsy
