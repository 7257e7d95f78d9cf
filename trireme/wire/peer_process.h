#pragma once
// Another process of this host, watched through a pidfd: its number cannot be taken by a later process
// unnoticed. Thread-safe.

#include <string>

#include "trireme/base/file_descriptor.h"

namespace trireme::wire {

class PeerProcess {
 public:
  /// A process that is gone already counts as dead.
  explicit PeerProcess(int pid);
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  int pid() const { return pid_; }
  /// One system call; does not wait.
  bool dead() const { return ends_within(0); }
  /// Waits for its end, at most so long. A process that ends loses its files before its number.
  bool ends_within(double max_s) const;
  /// "running", "sleeping", "stopped", "dead", ...: for messages.
  std::string state() const;

 private:
  int pid_;
  FileDescriptor descriptor_;
};

}  // namespace trireme::wire
