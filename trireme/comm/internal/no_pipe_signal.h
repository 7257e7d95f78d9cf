#pragma once
// During its lifetime, a write of this thread to a connection that the other side has closed is an error
// (EPIPE). Without it the write raises SIGPIPE, which ends a process without a message. Threads that start
// meanwhile keep the signal blocked permanently. For libraries that write without MSG_NOSIGNAL; the program's
// own handling of the signal is unchanged.

#include <signal.h>

#include <ctime>

namespace trireme::comm {

class NoPipeSignal {
 public:
  NoPipeSignal() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    if (::sigismember(&before_, SIGPIPE) == 1) return;
    // One that came meanwhile would strike when the mask goes.
    const std::timespec no_time{};
    while (::sigtimedwait(&pipe_, nullptr, &no_time) == SIGPIPE) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace trireme::comm
