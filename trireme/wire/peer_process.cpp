#include "trireme/wire/peer_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>

#include "trireme/base/text.h"

namespace trireme::wire {

PeerProcess::PeerProcess(int pid)
    : pid_(pid), descriptor_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

PeerProcess::~PeerProcess() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool PeerProcess::dead() const {
  // Without pidfd_open (old kernel, sandbox) the number itself has to do.
  if (descriptor_ < 0) return ::kill(pid_, 0) != 0 && errno == ESRCH;
  pollfd event{descriptor_, POLLIN, 0};
  return ::poll(&event, 1, 0) == 1;
}

std::string PeerProcess::state() const {
  if (dead()) return "dead";
  std::ifstream file(text("/proc/", pid_, "/stat"));
  std::string line;
  std::getline(file, line);
  // The program's name stands in parentheses before the state and may hold anything.
  const std::size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos || end_of_name + 2 >= line.size()) return "dead";
  switch (line[end_of_name + 2]) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "waiting for a disk";
    case 'T':
      return "stopped";
    case 't':
      return "stopped by a debugger";
    default:
      return "dead";
  }
}

}  // namespace trireme::wire
