#pragma once
// A process that ends with the one that measures. Made while that has one thread.

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <iostream>

namespace trireme::bench {

class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int result = 0;
    try {
      body();
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
      result = 1;
    }
    ::_exit(result);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Of all its threads so far.
  double cpu_s() const {
    clockid_t clock{};
    timespec time{};
    if (::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

 private:
  pid_t pid_;
};

/// The calling process and what it starts, on this core alone.
inline void pin_to(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
}

}  // namespace trireme::bench
