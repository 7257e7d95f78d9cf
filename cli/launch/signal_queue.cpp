#include "cli/launch/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::cli {

SignalQueue::SignalQueue() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD}) sigaddset(&mask, signal);
  ::sigprocmask(SIG_BLOCK, &mask, &before_);
  fd_ = ::signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
  if (fd_ < 0) throw InternalError(text("no signal descriptor: ", std::strerror(errno)));
}

SignalQueue::~SignalQueue() {
  ::close(fd_);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalQueue::next() {
  signalfd_siginfo info{};
  if (::read(fd_, &info, sizeof info) != sizeof info) return 0;
  sender_ = info.ssi_code <= 0 ? static_cast<int>(info.ssi_pid) : 0;  // positive codes are the kernel's own
  return static_cast<int>(info.ssi_signo);
}

void Notes::add(const std::string& note) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(note);
}

std::vector<std::string> Notes::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

}  // namespace trireme::cli
