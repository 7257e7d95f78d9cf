// Ranks as real processes, started by hand with the variables of a launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/ports.h"
#include "trireme/base/clock.h"

namespace trireme {
namespace {

using test::ChildProcess;
using test::ChildResult;
using test::free_port;
using testing::AllOf;
using testing::HasSubstr;

struct World {
  int size = 2;
  std::string backend = "auto";
  std::string timeout_s = "20";
  std::string mode = "sum";
  int port = free_port();
  /// By rank, on top of the launcher's variables.
  std::map<int, std::map<std::string, std::string>> extra{};
};

std::unique_ptr<ChildProcess> start(const World& world, int rank) {
  std::map<std::string, std::string> variables{
      {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world.size)},
      {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world.size)},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(world.port)}};
  const auto extra = world.extra.find(rank);
  if (extra != world.extra.end()) {
    for (const auto& [name, value] : extra->second) variables[name] = value;
  }
  return std::make_unique<ChildProcess>(
      std::vector<std::string>{test::bin("rank_comm_probe"), world.backend, world.timeout_s, world.mode},
      variables);
}

std::vector<std::unique_ptr<ChildProcess>> start_all(const World& world) {
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int rank = 0; rank < world.size; ++rank) ranks.push_back(start(world, rank));
  return ranks;
}

TEST(CommProcesses, AutoIsSharedMemoryOnOneHost) {
  auto ranks = start_all({.size = 2});
  for (auto& rank : ranks) {
    const ChildResult result = rank->wait(60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("of 2 over shm: sum 3"));
    EXPECT_EQ(result.err, "");
  }
}

TEST(CommProcesses, AutoIsHierarchicalOverSeveralHosts) {
  World world{.size = 3};
  for (const int rank : {0, 1, 2}) world.extra[rank]["TRIREME_HOST_ID"] = rank < 2 ? "left" : "right";
  auto ranks = start_all(world);
  for (auto& rank : ranks) {
    const ChildResult result = rank->wait(60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("of 3 over hierarchical: sum 6"));
  }
}

TEST(CommProcesses, ARankThatNeverArrivesIsNamed) {
  const World world{.size = 3, .timeout_s = "2"};
  auto first = start(world, 0);
  auto second = start(world, 1);
  for (auto* rank : {&first, &second}) {
    const ChildResult result = (*rank)->wait(60);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("rank 2 of 3 did not arrive within 2"), HasSubstr("arrived: 0 (pid ")));
  }
}

TEST(CommProcesses, DifferentWorldSizesNameBothSides) {
  World world{.size = 2};
  world.extra[1]["WORLD_SIZE"] = "3";
  world.extra[1]["LOCAL_WORLD_SIZE"] = "3";
  auto ranks = start_all(world);
  for (auto& rank : ranks) {
    const ChildResult result = rank->wait(60);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, AllOf(HasSubstr("WORLD_SIZE 2"), HasSubstr("WORLD_SIZE 3"), HasSubstr("rank 1")));
  }
}

TEST(CommProcesses, APortThatIsTakenSaysWhatToDo) {
  const test::TakenPort port;
  auto rank = start({.size = 2, .port = port.number()}, 0);
  const ChildResult result = rank->wait(60);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("another program listens"), HasSubstr("MASTER_PORT")));
}

class KilledOrStopped : public testing::TestWithParam<const char*> {};

// Returns what the survivors said.
std::vector<ChildResult> survivors_of(const World& world, int signal) {
  auto ranks = start_all(world);
  for (auto& rank : ranks) EXPECT_TRUE(rank->wait_for_output("ready", 60));
  ranks[1]->send_signal(signal);
  std::vector<ChildResult> results;
  for (const std::size_t rank : {0u, 2u}) results.push_back(ranks[rank]->wait(60));
  ranks[1]->send_signal(SIGKILL);
  return results;
}

TEST_P(KilledOrStopped, SurvivorsNameTheDeadRank) {
  const double start_s = now_s();
  for (const auto& result :
       survivors_of({.size = 3, .backend = GetParam(), .timeout_s = "30", .mode = "wait"}, SIGKILL)) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1")));
  }
  EXPECT_LT(now_s() - start_s, 30);
}

TEST_P(KilledOrStopped, SurvivorsNameTheFrozenRankByTheDeadline) {
  const double start_s = now_s();
  for (const auto& result :
       survivors_of({.size = 3, .backend = GetParam(), .timeout_s = "3", .mode = "wait"}, SIGSTOP)) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1")));
  }
  EXPECT_LT(now_s() - start_s, 30);
}

INSTANTIATE_TEST_SUITE_P(CommProcesses, KilledOrStopped, testing::Values("gloo", "shm"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace trireme
