// Who is worth waiting for, without ranks; and what a rank says of itself.
#include "trireme/comm/internal/patience.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/internal/beat.h"

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kPatience_s = 60;

Standing busy() {
  Standing standing;
  standing.idle_s = 1;
  return standing;
}
Standing idle() {
  Standing standing;
  standing.idle_s = kPatience_s + 1;
  return standing;
}
Standing lost() {
  Standing standing = busy();
  standing.lost = true;
  return standing;
}
Standing waiting_for(std::vector<int> ranks) {
  Standing standing = idle();
  standing.waits = true;
  standing.waits_for = std::move(ranks);
  return standing;
}

/// Rank 0 asks.
Verdict verdict(const std::vector<int>& missing, const std::vector<Standing>& others) {
  std::vector<Standing> ranks{waiting_for(missing)};
  ranks.insert(ranks.end(), others.begin(), others.end());
  return judge(0, missing, ranks, kPatience_s);
}

TEST(Patience, WaitsForWhoGetsOnAndCallsItSlow) {
  const Verdict found = verdict({1, 2}, {busy(), busy()});
  EXPECT_THAT(found.chain, IsEmpty());
  EXPECT_THAT(found.slow, ElementsAre(1, 2));
}

TEST(Patience, DoesNotCallSlowWhomNobodyHasSeenGettingOnYet) {
  Standing unknown = busy();
  unknown.gets_on = false;
  const Verdict found = verdict({1}, {unknown});
  EXPECT_THAT(found.chain, IsEmpty());
  EXPECT_THAT(found.slow, IsEmpty());
}

TEST(Patience, EndsForWhoIsLostOrIdlesAlthoughOthersGetOn) {
  EXPECT_THAT(verdict({1, 2}, {busy(), idle()}).chain, ElementsAre(2));
  EXPECT_THAT(verdict({1, 2}, {busy(), lost()}).chain, ElementsAre(2));
}

TEST(Patience, FollowsThoseWhoWaitToTheOneTheyWaitFor) {
  EXPECT_THAT(verdict({1}, {waiting_for({2}), waiting_for({3}), busy()}).slow, ElementsAre(3));
  EXPECT_THAT(verdict({1}, {waiting_for({2}), waiting_for({3}), idle()}).chain, ElementsAre(1, 2, 3));
}

TEST(Patience, EndsInACircleThatTheAskingRankIsPartOf) {
  const Verdict found = verdict({1}, {waiting_for({2}), waiting_for({0})});
  EXPECT_TRUE(found.in_circle);
  EXPECT_THAT(found.chain, ElementsAre(1, 2));
}

TEST(Patience, EndsInACircleOfOthers) {
  const Verdict found = verdict({1}, {waiting_for({2}), waiting_for({3}), waiting_for({2})});
  EXPECT_TRUE(found.in_circle);
  EXPECT_THAT(found.chain, ElementsAre(1, 2, 3, 2));
}

TEST(Patience, DoesNotTakeTwoWaysToOneRankForACircle) {
  const Verdict found = verdict({1, 2}, {waiting_for({3}), waiting_for({3}), busy()});
  EXPECT_THAT(found.chain, IsEmpty());
  EXPECT_THAT(found.slow, ElementsAre(3));
}

TEST(Patience, AWaitThatHasJustBegunIsNoDeadlock) {
  Standing just_came = waiting_for({0});
  just_came.idle_s = 1;
  EXPECT_THAT(verdict({1}, {just_came}).chain, IsEmpty());
}

TEST(Patience, EndsForAWaitThatAllHaveComeTo) {
  EXPECT_THAT(verdict({1}, {waiting_for({})}).chain, ElementsAre(1));
}

TEST(Beat, IsReadAsItWasWritten) {
  Beat beat;
  beat.number = 7;
  beat.signs = 5;
  beat.publications = 3;
  beat.leaves = true;
  beat.waits = true;
  beat.waits_for = {2, 11};
  beat.operation = "all_reduce #5 of group world";
  beat.action = "step 3:\n0F1";
  beat.own_work = "saving a checkpoint";
  const Beat found = decode_beat(encode(beat)).value();
  EXPECT_EQ(found.number, 7U);
  EXPECT_EQ(found.signs, 5U);
  EXPECT_EQ(found.publications, 3U);
  EXPECT_TRUE(found.leaves);
  EXPECT_TRUE(found.waits);
  EXPECT_THAT(found.waits_for, ElementsAre(2, 11));
  EXPECT_EQ(found.operation, beat.operation);
  EXPECT_EQ(found.action, "step 3: 0F1");
  EXPECT_EQ(found.own_work, beat.own_work);
  EXPECT_THAT(decode_beat(encode({})).value().waits_for, IsEmpty());
}

TEST(Beat, RefusesWhatNobodyWrote) {
  for (const char* broken : {"", "1", "1 2 3 0 0", "1 2 3 0 0 x\n\n\n", "x\n\n\n"})
    EXPECT_FALSE(decode_beat(broken).has_value()) << broken;
}

class SignsOfLifeTest : public testing::Test {
 protected:
  bool gets_on(bool waits = false) {
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
  gets_on();
  EXPECT_FALSE(gets_on());
  cpu_s_ += 1;
  EXPECT_TRUE(gets_on());
  EXPECT_FALSE(gets_on());
  cpu_s_ += 1;
  EXPECT_FALSE(gets_on(/*waits=*/true)) << "it may only be spinning";
  EXPECT_FALSE(gets_on()) << "that was in the wait";
}

TEST_F(SignsOfLifeTest, AreAChangedStatus) {
  gets_on();
  page_->set_action("step 2");
  EXPECT_TRUE(gets_on(/*waits=*/true));
  EXPECT_FALSE(gets_on(/*waits=*/true));
}

TEST_F(SignsOfLifeTest, AreWorkOfItsOwnAsLongAsItLasts) {
  gets_on();
  {
    const telemetry::OwnWork work(*page_, "loading");
    EXPECT_TRUE(gets_on());
    EXPECT_TRUE(gets_on());
  }
  gets_on();
  EXPECT_FALSE(gets_on());
}

}  // namespace
}  // namespace trireme::comm
