// The process of a rank, from its start.
#include "cli/launch/rank_process.h"

#include <gmock/gmock.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

RankStart start_of(const std::string& program) {
  return {.rank = 0, .program = program, .arguments = {program, "60"}, .environment = {}};
}

RankProcess::Change next_change(RankProcess& process) {
  for (;;) {
    if (const auto change = process.look(); change != RankProcess::Change::kNone) return change;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool stops_after_fork = false;

TEST(StartOfARank, DoesNotAwaitProcessStoppedBeforeProgram) {
  ASSERT_EQ(::pthread_atfork(nullptr, nullptr,
                             [] {
                               if (stops_after_fork) ::raise(SIGSTOP);
                             }),
            0);
  stops_after_fork = true;
  RankProcess process(start_of("/bin/sleep"));
  stops_after_fork = false;
  EXPECT_EQ(next_change(process), RankProcess::Change::kStopped);
  EXPECT_TRUE(process.frozen());
  process.send_signal(SIGCONT);
  EXPECT_EQ(next_change(process), RankProcess::Change::kContinued);
  process.send_signal(SIGKILL);
  EXPECT_EQ(next_change(process), RankProcess::Change::kEnded);
}

TEST(StartOfARank, ReportsAProgramThatCannotBeExecuted) {
  EXPECT_THAT([] { RankProcess process(start_of("/no/such/program")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("cannot execute /no/such/program")));
}

}  // namespace
}  // namespace trireme::cli
