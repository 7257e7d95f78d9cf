#pragma once
// Signals that end a process: their names, and their meaning. Functions without state; thread-safe.

#include <string>

namespace trireme::autopsy {

/// "SIGKILL"; "signal 77" for one without a name.
std::string signal_name(int signal);
/// Whether the kernel sends it for a fault of the process's own code.
bool is_crash(int signal);

/// Why the kernel sends a signal for which no other process is needed.
struct SignalReason {
  int signal;
  const char* reason;
  const char* advice;
};
/// Null for signals that other processes send.
const SignalReason* reason_of(int signal);

}  // namespace trireme::autopsy
