#include "trireme/wire/peer_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <fstream>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::wire {
namespace {

constexpr double kLookAgain_s = 0.01;

}  // namespace

PeerProcess::PeerProcess(int pid)
    : pid_(pid), descriptor_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

bool PeerProcess::ends_within(double max_s) const {
  const Deadline deadline = Deadline::after_s(max_s);
  pollfd event{descriptor_.get(), POLLIN, 0};
  do {
    // Without pidfd_open (old kernel, sandbox) the pid must suffice; poll() only sleeps then.
    if (!descriptor_.is_open() && ::kill(pid_, 0) != 0 && errno == ESRCH) return true;
    const double step_s = std::min(!descriptor_.is_open() ? kLookAgain_s : max_s, deadline.remaining_s());
    if (::poll(&event, 1, static_cast<int>(std::ceil(step_s * 1e3))) == 1) return true;
  } while (!deadline.expired());
  return false;
}

std::string PeerProcess::state() const {
  if (dead()) return "dead";
  std::ifstream file(text("/proc/", pid_, "/stat"));
  std::string line;
  std::getline(file, line);
  // The program's name precedes the state, in parentheses, and may contain any character.
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
