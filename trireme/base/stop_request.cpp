#include "trireme/base/stop_request.h"

#include <atomic>
#include <csignal>
#include <ctime>

namespace trireme {
namespace {

// A signal handler can reach nothing but statics; these two are all of them.
std::atomic<int> received_signal{0};
std::atomic<long> received_s{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<long>::is_always_lock_free);

long monotonic_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

extern "C" void remember_signal(int signal) {
  if (received_signal == 0) {
    received_signal = signal;
    received_s = monotonic_s();
  } else if (monotonic_s() - received_s > 1) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

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
