#include "cli/launch/report.h"

#include <gmock/gmock.h>
#include <signal.h>

namespace trireme::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int exited(int code) { return code << 8; }
constexpr int killed(int signal) { return signal; }

RankStory rank(int number, int wait_status, double ended_s) {
  return {.rank = number, .pid = 100 + number, .wait_status = wait_status, .ended_s = ended_s, .status = {}};
}

TEST(LaunchReport, IsEmptyWhenAllRanksEndWell) {
  const WorldStory world{.ranks = {rank(0, exited(0), 1), rank(1, exited(0), 2)}};
  EXPECT_THAT(report(world), IsEmpty());
  EXPECT_EQ(exit_code_of(world), 0);
}

TEST(LaunchReport, JobEndedElsewhereIsFailure) {
  WorldStory world{.ranks = {rank(0, exited(3), 1), rank(1, exited(3), 2)}, .job_exit_code = 3};
  for (RankStory& each : world.ranks) each.stopped = true;
  EXPECT_EQ(exit_code_of(world), 3);
  EXPECT_THAT(report(world).front(), HasSubstr("no rank of this host has failed"));
}

TEST(LaunchReport, BlamesKilledRankNotReportingSurvivors) {
  WorldStory world{
      .ranks = {rank(0, exited(3), 1.0), rank(1, exited(3), 1.1), rank(2, killed(SIGKILL), 1.2)}};
  world.ranks[2].status.operation = "all_reduce #57 of group world";
  world.ranks[2].status.action = "step 12: 0B3";
  EXPECT_EQ(culprit(world)->rank, 2);
  EXPECT_EQ(exit_code_of(world), 3);
  const auto lines = report(world);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("rank 2"), HasSubstr("SIGKILL"), HasSubstr("lack of memory")));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("step 12: 0B3"), HasSubstr("all_reduce #57 of group world")));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("rank 0"), HasSubstr("code 3")));
}

TEST(LaunchReport, PassesCodeOfRankWithReason) {
  const WorldStory world{.ranks = {rank(0, exited(3), 1.0), rank(1, exited(4), 1.2)}};
  EXPECT_EQ(culprit(world)->rank, 1);
  EXPECT_EQ(exit_code_of(world), 4);
}

TEST(LaunchReport, CallsNoExceptionOfProgramABug) {
  const WorldStory world{.ranks = {rank(0, exited(70), 1.0)}};
  EXPECT_EQ(exit_code_of(world), 70);
  EXPECT_THAT(report(world)[0], AllOf(HasSubstr("code 70 (an unexpected exception, or no memory"),
                                      HasSubstr("rank 0"), testing::Not(HasSubstr("bug"))));
}

TEST(LaunchReport, BlamesTheFirstOfEquals) {
  const WorldStory world{.ranks = {rank(0, exited(4), 2.0), rank(1, exited(5), 1.0)}};
  EXPECT_EQ(exit_code_of(world), 5);
}

TEST(LaunchReport, DoesNotBlameRankStoppedByLauncher) {
  WorldStory world{.ranks = {rank(0, killed(SIGTERM), 1.0), rank(1, exited(5), 2.0)}};
  world.ranks[0].stopped = true;
  EXPECT_EQ(culprit(world)->rank, 1);
  EXPECT_THAT(report(world)[2], HasSubstr("stopped by the launcher"));
}

TEST(LaunchReport, BlamesFrozenRankAlthoughLauncherEndedIt) {
  WorldStory world{.ranks = {rank(0, exited(3), 1.0), rank(1, killed(SIGTERM), 2.0)}};
  world.ranks[1].stopped = true;
  world.ranks[1].frozen_by = SIGSTOP;
  EXPECT_EQ(culprit(world)->rank, 1);
  EXPECT_EQ(exit_code_of(world), 3);
  EXPECT_THAT(report(world)[0], AllOf(HasSubstr("rank 1"), HasSubstr("SIGSTOP")));
}

TEST(LaunchReport, ReportsKernelKillForLackOfMemory) {
  const WorldStory world{.ranks = {rank(0, killed(SIGKILL), 1.0)}, .oom_kills = 1};
  EXPECT_THAT(report(world)[0], HasSubstr("by the kernel for lack of memory"));
}

TEST(LaunchReport, TellsWhyTheKernelSendsASignal) {
  const auto cause_of = [](int signal) { return report({.ranks = {rank(0, killed(signal), 1.0)}})[0]; };
  EXPECT_THAT(cause_of(SIGXCPU), HasSubstr("SIGXCPU after 1.0 s: it reached its limit of processor time"));
  EXPECT_THAT(cause_of(SIGXFSZ), HasSubstr("its limit of file sizes"));
  EXPECT_THAT(cause_of(SIGILL), HasSubstr("a crash of the program"));
}

TEST(LaunchReport, NamesSignalThatStoppedIt) {
  const WorldStory world{.ranks = {rank(0, killed(SIGINT), 1.0)}, .told_to_stop = SIGINT};
  EXPECT_EQ(exit_code_of(world), 130);
  EXPECT_THAT(report(world)[0], HasSubstr("SIGINT"));
}

TEST(LaunchReport, StaysShortWithManyRanks) {
  WorldStory world;
  for (int i = 0; i < 1000; ++i) world.ranks.push_back(rank(i, exited(3), i));
  EXPECT_LT(report(world).size(), 20U);
  EXPECT_THAT(report(world).back(), HasSubstr("983 more ranks"));
}

}  // namespace
}  // namespace trireme::cli
