#include "trireme/base/stop_request.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <ctime>

#include "trireme/base/stop_notice.h"

namespace trireme {
namespace {

// A signal handler can only use static data; this is all of it.
std::atomic<int> received_signal{0};
std::atomic<long> received_s{0};
std::atomic<const char*> notice_of_stop{nullptr}, notice_of_end{nullptr};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<long>::is_always_lock_free);

long monotonic_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

void say(const char* notice) {
  if (notice != nullptr && ::write(STDERR_FILENO, notice, std::strlen(notice)) < 0)
    return;  // standard error has no reader
}

extern "C" void say_and_end(int signal) {
  say(notice_of_end);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

extern "C" void remember_signal(int signal) {
  if (received_signal == 0) {
    received_signal = signal;
    say(notice_of_stop);
    received_s = monotonic_s();
  } else if (monotonic_s() - received_s > 1) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

void announce_stops(const char* notice) { notice_of_stop = notice; }

void end_with_notice(const char* notice) {
  notice_of_end = notice;
  sigset_t both;
  sigemptyset(&both);
  for (const int signal : {SIGINT, SIGTERM}) {
    sigaddset(&both, signal);
    if (std::signal(signal, say_and_end) == SIG_IGN)
      std::signal(signal, SIG_IGN);  // nohup and shells have set it
  }
  ::sigprocmask(SIG_UNBLOCK, &both, nullptr);
}

StopRequest::StopRequest() {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = remember_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &interrupt_before_);
  sigaction(SIGTERM, &action, &terminate_before_);
}

StopRequest::~StopRequest() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
}

int StopRequest::signal() const { return received_signal; }

}  // namespace trireme
