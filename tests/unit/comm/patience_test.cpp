// The decision to wait for a rank, without ranks, and the status of a rank.
#include "trireme/comm/internal/patience.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/internal/heartbeat.h"

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kPatience_s = 60;

WaitStatus busy() {
  WaitStatus standing;
  standing.idle_s = 1;
  return standing;
}
WaitStatus idle() {
  WaitStatus standing;
  standing.idle_s = kPatience_s + 1;
  return standing;
}
WaitStatus lost() {
  WaitStatus standing = busy();
  standing.lost = true;
  return standing;
}
WaitStatus waiting_for(std::vector<int> ranks) {
  WaitStatus standing = idle();
  standing.waits = true;
  standing.waits_for = std::move(ranks);
  return standing;
}

/// The verdict of rank 0.
Verdict verdict(const std::vector<int>& missing, const std::vector<WaitStatus>& others) {
  std::vector<WaitStatus> ranks{waiting_for(missing)};
  ranks.insert(ranks.end(), others.begin(), others.end());
  return judge(0, missing, ranks, kPatience_s);
}

TEST(Patience, AwaitsBusyRankAndCallsItSlow) {
  const Verdict found = verdict({1, 2}, {busy(), busy()});
  EXPECT_THAT(found.chain, IsEmpty());
  EXPECT_THAT(found.slow, ElementsAre(1, 2));
}

TEST(Patience, UnseenRankIsNotReportedSlow) {
  WaitStatus unknown = busy();
  unknown.made_progress = false;
  const Verdict found = verdict({1}, {unknown});
  EXPECT_THAT(found.chain, IsEmpty());
  EXPECT_THAT(found.slow, IsEmpty());
}

TEST(Patience, EndsForLostOrIdleRank) {
  EXPECT_THAT(verdict({1, 2}, {busy(), idle()}).chain, ElementsAre(2));
  EXPECT_THAT(verdict({1, 2}, {busy(), lost()}).chain, ElementsAre(2));
}

TEST(Patience, FollowsWaitingRanksToAwaitedOne) {
  EXPECT_THAT(verdict({1}, {waiting_for({2}), waiting_for({3}), busy()}).slow, ElementsAre(3));
  EXPECT_THAT(verdict({1}, {waiting_for({2}), waiting_for({3}), idle()}).chain, ElementsAre(1, 2, 3));
}

TEST(Patience, EndsInCircleThatIncludesAskingRank) {
  const Verdict found = verdict({1}, {waiting_for({2}), waiting_for({0})});
  EXPECT_TRUE(found.in_circle);
  EXPECT_THAT(found.chain, ElementsAre(1, 2));
}

TEST(Patience, EndsInACircleOfOthers) {
  const Verdict found = verdict({1}, {waiting_for({2}), waiting_for({3}), waiting_for({2})});
  EXPECT_TRUE(found.in_circle);
  EXPECT_THAT(found.chain, ElementsAre(1, 2, 3, 2));
}

TEST(Patience, TwoWaysToRankAreNoCircle) {
  const Verdict found = verdict({1, 2}, {waiting_for({3}), waiting_for({3}), busy()});
  EXPECT_THAT(found.chain, IsEmpty());
  EXPECT_THAT(found.slow, ElementsAre(3));
}

TEST(Patience, WaitThatJustBeganIsNoDeadlock) {
  WaitStatus just_came = waiting_for({0});
  just_came.idle_s = 1;
  EXPECT_THAT(verdict({1}, {just_came}).chain, IsEmpty());
}

TEST(Patience, EndsForWaitThatAllHaveReached) {
  EXPECT_THAT(verdict({1}, {waiting_for({})}).chain, ElementsAre(1));
}

TEST(Heartbeat, IsReadAsItWasWritten) {
  Heartbeat beat;
  beat.number = 7;
  beat.progress_counter = 5;
  beat.publications = 3;
  beat.leaves = true;
  beat.waits = true;
  beat.waits_for = {2, 11};
  beat.operation = "all_reduce #5 of group world";
  beat.action = "step 3:\n0F1";
  beat.own_work = "saving a checkpoint";
  const Heartbeat found = decode_heartbeat(encode(beat)).value();
  EXPECT_EQ(found.number, 7U);
  EXPECT_EQ(found.progress_counter, 5U);
  EXPECT_EQ(found.publications, 3U);
  EXPECT_TRUE(found.leaves);
  EXPECT_TRUE(found.waits);
  EXPECT_THAT(found.waits_for, ElementsAre(2, 11));
  EXPECT_EQ(found.operation, beat.operation);
  EXPECT_EQ(found.action, "step 3: 0F1");
  EXPECT_EQ(found.own_work, beat.own_work);
  EXPECT_THAT(decode_heartbeat(encode({})).value().waits_for, IsEmpty());
}

TEST(Heartbeat, RejectsMalformedText) {
  for (const char* broken : {"", "1", "1 2 3 0 0", "1 2 3 0 0 x\n\n\n", "x\n\n\n"})
    EXPECT_FALSE(decode_heartbeat(broken).has_value()) << broken;
}

class SignsOfLifeTest : public testing::Test {
 protected:
  bool made_progress(bool waits = false) {
    const auto before = count_;
    count_ = signs_.look(page_->read(), waits);
    return count_ > before;
  }

  std::shared_ptr<telemetry::StatusPage> page_ = telemetry::StatusPage::make_private();
  double cpu_s_ = 100;
  SignsOfLife signs_{page_, [this] { return cpu_s_; }};
  std::uint64_t count_ = 0;
};

TEST_F(SignsOfLifeTest, AreProcessorTimeOutsideOfWaits) {
  made_progress();
  EXPECT_FALSE(made_progress());
  cpu_s_ += 1;
  EXPECT_TRUE(made_progress());
  EXPECT_FALSE(made_progress());
  cpu_s_ += 1;
  EXPECT_FALSE(made_progress(/*waits=*/true)) << "it may only be spinning";
  EXPECT_FALSE(made_progress()) << "that was in the wait";
}

TEST_F(SignsOfLifeTest, AreAChangedStatus) {
  made_progress();
  page_->set_action("step 2");
  EXPECT_TRUE(made_progress(/*waits=*/true));
  EXPECT_FALSE(made_progress(/*waits=*/true));
}

TEST_F(SignsOfLifeTest, ShowDeclaredWorkWhileItLasts) {
  made_progress();
  {
    const telemetry::OwnWork work(*page_, "loading");
    EXPECT_TRUE(made_progress());
    EXPECT_TRUE(made_progress());
  }
  made_progress();
  EXPECT_FALSE(made_progress());
}

}  // namespace
}  // namespace trireme::comm
