#include "trireme/comm/pin.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/comm/context.h"
#include "trireme/comm/internal/pinned_threads.h"

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Cores = std::vector<int>;

/// Cores of one socket, four to a node.
std::vector<topology::CorePlace> places_of(std::span<const int> cores) {
  std::vector<topology::CorePlace> places;
  for (const int core : cores) places.push_back({.number = core, .node = core / 4, .physical = core});
  return places;
}

PinPlan plan_of(const std::string& pin, std::vector<Cores> allowed) {
  std::vector<RankCores> ranks;
  for (std::size_t i = 0; i < allowed.size(); ++i)
    ranks.push_back({static_cast<int>(i) + 2, std::move(allowed[i])});
  return plan_pins(pin, ranks, places_of);
}

std::vector<Cores> cores_of(const PinPlan& plan) {
  std::vector<Cores> all;
  for (const RankCores& each : plan.pinned) all.push_back(each.cores);
  return all;
}

TEST(Pin, RanksShareTheirCommonCores) {
  const Cores eight = {0, 1, 2, 3, 4, 5, 6, 7};
  const PinPlan plan = plan_of("cores", {eight, eight, eight, eight});
  EXPECT_THAT(cores_of(plan), ElementsAre(Cores{0, 1}, Cores{2, 3}, Cores{4, 5}, Cores{6, 7}));
  EXPECT_EQ(plan.words, "ranks are pinned to cores: 2 on 0-1, 3 on 2-3, 4 on 4-5, 5 on 6-7");
  EXPECT_FALSE(plan.is_rejected);
  EXPECT_THAT(cores_of(plan_of("numa", {eight, eight, eight, eight})),
              ElementsAre(Cores{0, 1, 2, 3}, Cores{0, 1, 2, 3}, Cores{4, 5, 6, 7}, Cores{4, 5, 6, 7}));
  EXPECT_THAT(plan_of("none", {eight, eight}).pinned, IsEmpty());
  EXPECT_EQ(plan_of("none", {eight, eight}).words, "");
  EXPECT_EQ(plan_of("cores", {eight}).words, "") << "a rank alone has all that it may";
}

TEST(Pin, RanksThatTheLauncherHasBoundStay) {
  const PinPlan plan = plan_of("cores", {{0, 1}, {2, 3}, {4, 5, 6}, {4, 5, 6}});
  ASSERT_EQ(plan.pinned.size(), 2u);
  EXPECT_EQ(plan.pinned[0].rank, 4);
  EXPECT_EQ(
      plan.words,
      "ranks are pinned to cores: 4 on 4, 5 on 5-6; ranks stay on the cores that they were bound to: 2 on "
      "0-1, 3 on 2-3");
  EXPECT_EQ(plan_of("cores", {{0}, {1}}).words,
            "ranks stay on the cores that they were bound to: 2 on 0, 3 on 1");
}

TEST(Pin, NoRankIsPinnedWithoutSeparateCores) {
  const PinPlan few = plan_of("cores", {{0, 1}, {0, 1}, {0, 1}});
  EXPECT_TRUE(few.is_rejected);
  EXPECT_THAT(few.pinned, IsEmpty());
  EXPECT_EQ(
      few.words,
      "comm.pin = \"cores\": there are 3 ranks for 2 cores (0-1), and none for each; no rank is pinned");
  const PinPlan part = plan_of("numa", {{4, 5}, {4, 5}, {5, 6}});
  EXPECT_THAT(part.pinned, IsEmpty());
  EXPECT_TRUE(part.is_rejected);
  EXPECT_THAT(part.words,
              HasSubstr("rank 2 may run on cores 4-5 and rank 4 on 5-6, which are partly the same"));
}

TEST(Pin, RejectsUnknownNameBeforeJoining) {
  EXPECT_THAT([] { Context::join({}, {.pin = "core"}); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'cores'?")));
}

TEST(Pin, RanksAsThreadsStayUnpinned) {
  const Cores before = allowed_cores();
  run_ranks_as_threads(2, [&](Context&) { EXPECT_EQ(allowed_cores(), before); }, {.pin = "cores"});
}

/// A thread that runs until it is released, and reports its allowed cores.
class Waiting {
 public:
  explicit Waiting(const Cores& cores)
      : thread_([this, cores] {
          if (!cores.empty()) bind(cores);
          is_ready_ = true;
          while (!asked_) std::this_thread::yield();
          found_ = allowed_cores();
        }) {
    while (!is_ready_) std::this_thread::yield();
  }
  Cores ask() {
    asked_ = true;
    thread_.join();
    return found_;
  }
  static void bind(const Cores& cores) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &mask);
    ASSERT_EQ(::sched_setaffinity(0, sizeof mask, &mask), 0);
  }

 private:
  std::atomic<bool> is_ready_ = false, asked_ = false;
  Cores found_;
  std::thread thread_;
};

TEST(PinnedThreads, PresentAndNewThreadsArePinned) {
  const Cores before = allowed_cores();
  if (before.size() < 2) GTEST_SKIP() << "there is one core alone";
  const Cores one = {before[0]}, other = {before[1]};
  for (int again = 0; again < 2; ++again) {
    Waiting there({}), bound(one);
    Cores started, after;
    {
      const PinnedThreads pinned(other);
      EXPECT_EQ(allowed_cores(), other);
      EXPECT_EQ(there.ask(), other);
      EXPECT_EQ(bound.ask(), one) << "somebody has put it there";
      std::thread([&] { started = allowed_cores(); }).join();
      EXPECT_EQ(started, other);
      Waiting lasting({});
      {
        // Like a second context, which has nothing to do and nothing to restore.
        const PinnedThreads second(other);
      }
      EXPECT_EQ(lasting.ask(), other);
    }
    EXPECT_EQ(allowed_cores(), before);
  }
}

}  // namespace
}  // namespace trireme::comm
