#include "trireme/comm/internal/no_pipe_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

namespace trireme::comm {
namespace {

/// A pipe without a reader.
class ClosedPipe {
 public:
  ClosedPipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    ::close(ends[0]);
    write_ = ends[1];
  }
  ~ClosedPipe() { ::close(write_); }
  ClosedPipe(const ClosedPipe&) = delete;
  ClosedPipe& operator=(const ClosedPipe&) = delete;
  void expect_broken() const {
    EXPECT_EQ(::write(write_, "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  }

 private:
  int write_ = -1;
};

bool is_blocked() {
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return ::sigismember(&now, SIGPIPE) == 1;
}

// The signal's default action would end this program. So half of the proof is that the tests end normally.

TEST(NoPipeSignal, WriteWithoutReaderIsErrorWithoutTrace) {
  const ClosedPipe pipe;
  ASSERT_FALSE(is_blocked());
  {
    const NoPipeSignal guard;
    pipe.expect_broken();
    const NoPipeSignal inner;
    pipe.expect_broken();
  }
  EXPECT_FALSE(is_blocked());
}

TEST(NoPipeSignal, HoldsForThreadsThatStartUnderIt) {
  const ClosedPipe pipe;
  std::thread thread;
  {
    const NoPipeSignal guard;
    thread = std::thread([&] { pipe.expect_broken(); });
  }
  thread.join();
}

TEST(NoPipeSignalDeathTest, IsNeeded) {
  EXPECT_EXIT(ClosedPipe().expect_broken(), testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace trireme::comm
