#include "trireme/autopsy/signals.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <array>

#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

constexpr const char* kTimer = "a timer of its own ran out";
constexpr const char* kFindTimer = "look for alarm(), setitimer() or a profiler in its code";

constexpr std::array kReasons = {
    SignalReason{SIGPIPE, "it wrote to a pipe or a connection that has no reader any more",
                 "look at the program that read from it, or ignore SIGPIPE"},
    SignalReason{SIGALRM, kTimer, kFindTimer},
    SignalReason{SIGVTALRM, kTimer, kFindTimer},
    SignalReason{SIGPROF, kTimer, kFindTimer},
    SignalReason{SIGXCPU, "it reached its limit of processor time", "raise the limit (ulimit -t)"},
    SignalReason{SIGXFSZ, "it wrote a file beyond its limit of file sizes", "raise the limit (ulimit -f)"},
    SignalReason{SIGIO, "a descriptor reported an event, and the process had no handler for it",
                 "look for O_ASYNC in its code"},
};

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? text("SIG", name) : text("signal ", signal);
}

bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGFPE || signal == SIGILL ||
         signal == SIGTRAP || signal == SIGSYS;
}

const SignalReason* reason_of(int signal) {
  const auto found = std::ranges::find(kReasons, signal, &SignalReason::signal);
  return found == kReasons.end() ? nullptr : &*found;
}

}  // namespace trireme::autopsy
