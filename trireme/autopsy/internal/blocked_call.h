#pragma once
// The system call that a thread waits in, with the file or connection it concerns.

#include <string>

#include "trireme/autopsy/evidence.h"

namespace trireme::autopsy {

/// `line`: of /proc/PID/task/TID/syscall, "0 0x3 0x7f... 0x1000 ...". A descriptor is named by its link in
/// /proc/PID/fd, which is read and not
/// opened. `state`: of the thread, as in /proc.
BlockedThread describe_call(int pid, char state, const std::string& line);

}  // namespace trireme::autopsy
