#pragma once
// A limit of CPU time for code that must run in linear time. The limit is many times the time of linear code,
// and much less than that of quadratic code.

#include <sys/resource.h>

namespace trireme::test {

/// SIGXCPU ends the process after this many seconds of CPU time. For the statement of EXPECT_EXIT, which has
/// its own process.
inline void limit_cpu_time(rlim_t seconds) {
  const rlimit limit{.rlim_cur = seconds, .rlim_max = seconds};
  ::setrlimit(RLIMIT_CPU, &limit);
}

}  // namespace trireme::test
