#pragma once
// The system call that a thread waits in, with the file or connection it concerns.

#include <string>

#include "trireme/autopsy/evidence.h"

namespace trireme::autopsy {

/// `line`: of /proc/PID/task/TID/syscall, "0 0x3 0x7f... 0x1000 ...". `state`: of the thread, as in /proc. No
/// call here waits for a disk or a file server: a descriptor is named by the text of its link in
/// /proc/PID/fd, and memory of the process is read where it is present.
BlockedThread describe_call(int pid, char state, const std::string& line);

}  // namespace trireme::autopsy
