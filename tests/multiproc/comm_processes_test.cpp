// Ranks as real processes, started by hand with the environment variables of a launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/support/world.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

using test::ChildResult;
using test::start;
using test::start_all;
using test::World;
using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> probe(const std::string& backend = "auto", const std::string& timeout_s = "20",
                               const std::string& mode = "sum") {
  return {test::bin("rank_comm_probe"), backend, timeout_s, mode};
}

// In about 1 % of processes, MKL computes one of two simultaneous first calls only approximately.
TEST(CommProcesses, FirstConcurrentUseHasLaterBits) {
  const ChildResult result = test::run({test::bin("rank_first_use"), "600"}, {}, 300);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST(CommProcesses, AutoIsSharedMemoryOnOneHost) {
  auto ranks = start_all({.size = 2, .command = probe()});
  for (auto& rank : ranks) {
    const ChildResult result = rank->wait(60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("of 2 over shm: sum 3"));
    EXPECT_EQ(result.err, "");
  }
}

TEST(CommProcesses, AutoIsHierarchicalOverSeveralHosts) {
  World world{.size = 3, .command = probe()};
  for (const int rank : {0, 1, 2}) world.extra[rank]["TRIREME_HOST_ID"] = rank < 2 ? "left" : "right";
  auto ranks = start_all(world);
  for (auto& rank : ranks) {
    const ChildResult result = rank->wait(60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("of 3 over hierarchical: sum 6"));
  }
}

TEST(CommProcesses, ARankThatNeverArrivesIsNamed) {
  const World world{.size = 3, .command = probe("auto", "6")};  // the other two ranks still arrive
  auto first = start(world, 0);
  auto second = start(world, 1);
  for (auto* rank : {&first, &second}) {
    const ChildResult result = (*rank)->wait(60);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("rank 2 of 3 did not arrive within 6"), HasSubstr("arrived: 0 (pid ")));
  }
}

TEST(CommProcesses, DifferentWorldSizesNameBothSides) {
  World world{.size = 2, .command = probe()};
  world.extra[1]["WORLD_SIZE"] = "3";
  world.extra[1]["LOCAL_WORLD_SIZE"] = "3";
  auto ranks = start_all(world);
  for (auto& rank : ranks) {
    const ChildResult result = rank->wait(60);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, AllOf(HasSubstr("WORLD_SIZE 2"), HasSubstr("WORLD_SIZE 3"), HasSubstr("rank 1")));
  }
}

TEST(CommProcesses, TakenPortSaysHowToProceed) {
  const test::TakenPort port;
  auto rank = start({.size = 2, .command = probe(), .port = port.number()}, 0);
  const ChildResult result = rank->wait(60);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("another program listens"), HasSubstr("MASTER_PORT")));
}

class KilledOrStopped : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  /// Ends one of three ranks during an operation. Returns the results of the survivors.
  std::vector<ChildResult> survivors_of(int signal, const std::string& timeout_s) {
    const auto [backend, victim] = GetParam();
    World world{.size = 3, .command = probe(backend, timeout_s, "wait")};
    world.command.push_back(std::to_string(victim));
    auto ranks = start_all(world);
    for (auto& rank : ranks) EXPECT_TRUE(rank->wait_for_output("ready", 60));
    ranks[static_cast<std::size_t>(victim)]->send_signal(signal);
    std::vector<ChildResult> results;
    for (int rank = 0; rank < world.size; ++rank) {
      if (rank != victim) results.push_back(ranks[static_cast<std::size_t>(rank)]->wait(60));
    }
    return results;
  }
  void expect_named(const ChildResult& result) {
    EXPECT_FALSE(result.timed_out) << result.err;
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("all_reduce"), HasSubstr("rank " + std::to_string(std::get<1>(GetParam())))));
  }
};

TEST_P(KilledOrStopped, SurvivorsNameTheDeadRank) {
  for (const auto& result : survivors_of(SIGKILL, "100")) expect_named(result);
}

TEST_P(KilledOrStopped, SurvivorsNameFrozenRankByDeadline) {
  for (const auto& result : survivors_of(SIGSTOP, "3")) expect_named(result);
}

INSTANTIATE_TEST_SUITE_P(CommProcesses, KilledOrStopped,
                         testing::Combine(testing::Values("gloo", "shm"), testing::Values(0, 1)),
                         [](const auto& test) {
                           return text(std::get<0>(test.param), "Rank", std::get<1>(test.param));
                         });

TEST(CommProcesses, RankKilledWhileLeavingIsNotAwaited) {
  auto ranks = start_all({.size = 2, .command = probe("auto", "1000", "leave")});
  ASSERT_TRUE(ranks[1]->wait_for_output("rank 0 leaves", 60));
  ranks[1]->send_signal(SIGKILL);
  const ChildResult result = ranks[0]->wait(60);
  EXPECT_FALSE(result.timed_out) << "rank 0 waits for a rank that is dead";
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

/// Sets the cores of this process and of the processes that it starts, until the object is destroyed.
class Bound {
 public:
  explicit Bound(const std::vector<int>& cores) { put(cores); }
  ~Bound() { put(before_); }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  static void put(const std::vector<int>& cores) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &mask);
    EXPECT_EQ(::sched_setaffinity(0, sizeof mask, &mask), 0);
  }
  const std::vector<int> before_ = allowed_cores();
};

class PinnedRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (cores_.size() < 2) GTEST_SKIP() << "there is one core alone";
  }
  static World world(const char* how) { return {.size = 2, .command = {test::bin("rank_pinned"), how}}; }
  std::string both() const { return text(first_, second_ == first_ + 1 ? "-" : ",", second_); }

  const std::vector<int> cores_ = allowed_cores();
  const int first_ = cores_[0], second_ = cores_.size() < 2 ? -1 : cores_[1];
};

TEST_F(PinnedRanks, HaveTheirOwnCoresUntilContextEnds) {
  const Bound two({first_, second_});
  auto ranks = start_all(world("cores"));
  for (int rank = 0; rank < 2; ++rank) {
    const ChildResult result = ranks[static_cast<std::size_t>(rank)]->wait(60);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const int own = rank == 0 ? first_ : second_;
    EXPECT_EQ(result.out, text("rank ", rank, ": ", own, "; 1 threads; earlier ", own, "; second ", own,
                               "; first ", own, "; afterwards ", both(), "\n"));
    const std::string said = text("ranks are pinned to cores: 0 on ", first_, ", 1 on ", second_, "\n");
    EXPECT_EQ(result.err.find(said) != std::string::npos, rank == 0) << result.err << "it is said once";
  }
}

TEST_F(PinnedRanks, AreNotUnlessThatIsAskedFor) {
  const Bound two({first_, second_});
  auto ranks = start_all(world("none"));
  for (auto& rank : ranks) {
    const ChildResult result = rank->wait(60);
    EXPECT_THAT(result.out, HasSubstr(text(": ", both(), "; 1 threads")));
    EXPECT_EQ(result.err, "") << "by default nothing is done, or said";
  }
}

TEST_F(PinnedRanks, StayWhereSomebodyHasBoundThem) {
  std::vector<std::unique_ptr<test::ChildProcess>> ranks;
  const World two = world("cores");
  for (const int rank : {0, 1}) {
    const Bound swapped({rank == 0 ? second_ : first_});
    ranks.push_back(start(two, rank));
  }
  for (int rank = 0; rank < 2; ++rank) {
    const ChildResult result = ranks[static_cast<std::size_t>(rank)]->wait(60);
    EXPECT_THAT(result.out,
                HasSubstr(text("rank ", rank, ": ", rank == 0 ? second_ : first_, "; 1 threads")));
    if (rank == 0) {
      EXPECT_THAT(result.err, HasSubstr(text("ranks stay on the cores that they were bound to: 0 on ",
                                             second_, ", 1 on ", first_)));
    }
  }
}

TEST_F(PinnedRanks, AreUnpinnedWithoutCoresOrFreeThreads) {
  {
    const Bound one({second_});
    auto ranks = start_all(world("cores"));
    const ChildResult result = ranks[0]->wait(60);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr(text("rank 0: ", second_, "; 1 threads")));
    EXPECT_THAT(result.err, HasSubstr("there are 2 ranks for 1 core ("));
    EXPECT_EQ(ranks[1]->wait(60).err, "") << "it is said once";
  }
  const Bound two({first_, second_});
  World bound = world("numa");
  for (const int rank : {0, 1}) bound.extra[rank]["OMP_PROC_BIND"] = "true";
  auto ranks = start_all(bound);
  const ChildResult result = ranks[0]->wait(60);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("OMP_PROC_BIND = true puts torch's threads on cores by itself"));
}

}  // namespace
}  // namespace trireme
