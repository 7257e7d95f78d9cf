#include "trireme/base/unix_time.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace trireme {
namespace {

/// The start time that a newly forked process reports.
double began_of_new_process() {
  int ends[2];
  if (::pipe(ends) != 0) return 0;
  const pid_t child = ::fork();
  if (child == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const double began = process_began_unix_s();
    const bool told = ::write(ends[1], &began, sizeof began) == sizeof began;
    ::_exit(told ? 0 : 1);
  }
  double began = 0;
  if (::read(ends[0], &began, sizeof began) != sizeof began) began = 0;
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  return began;
}

TEST(UnixTime, AProcessKnowsWhenItBegan) {
  constexpr double kTick_s = 0.05;  // the kernel counts in hundredths of a second
  const double before = unix_now_s();
  const double began = began_of_new_process();
  EXPECT_GE(began, before - kTick_s);
  EXPECT_LE(began, unix_now_s() - 0.3 + kTick_s) << "not the time of the question";
  EXPECT_LE(process_began_unix_s(), before + kTick_s);
}

}  // namespace
}  // namespace trireme
