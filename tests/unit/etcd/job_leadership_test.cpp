#include "trireme/etcd/job_leadership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/etcd/members.h"
#include "trireme/etcd/internal/client.h"
#include "trireme/etcd/store_address.h"

namespace trireme::etcd {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class JobLeadershipTest : public testing::Test {
 protected:
  void SetUp() override {
    TRIREME_NEEDS_ETCD();
    etcd_ = std::make_unique<test::EtcdCluster>(1);
  }
  std::unique_ptr<JobLeadership> launcher(double lease_s = 60) const {
    return std::make_unique<JobLeadership>(JobLeadershipOptions{.store = etcd_->address(), .lease_s = lease_s});
  }

  std::unique_ptr<test::EtcdCluster> etcd_;
};

TEST_F(JobLeadershipTest, HostsGetDifferentNumbers) {
  for (int number = 0; number < 3; ++number) EXPECT_EQ(launcher()->claim_number(), number);
}

TEST_F(JobLeadershipTest, FirstValueIsAgreedOn) {
  EXPECT_EQ(launcher()->agree("start", "one"), "one");
  EXPECT_EQ(launcher()->agree("start", "two"), "one");
  EXPECT_EQ(launcher()->agree("end", "two"), "two");
}

TEST_F(JobLeadershipTest, SuccessorReadsRecordOfLeader) {
  auto first = launcher();
  const auto second = launcher();
  first->campaign("one:1");
  ASSERT_TRUE(comes_true([&] { return first->term() != 0; }));
  second->campaign("two:2");
  ASSERT_TRUE(comes_true([&] { return second->leader() == "one:1"; }));
  EXPECT_EQ(first->load(), std::nullopt);
  first->save("world 0");
  first->save("world 1");
  EXPECT_EQ(second->term(), 0);
  EXPECT_THAT([&] { second->save("world 2"); }, ThrowsMessage<CommError>(HasSubstr("does not lead")));
  first.reset();
  ASSERT_TRUE(comes_true([&] { return second->term() != 0; }));
  EXPECT_EQ(second->leader(), "two:2");
  EXPECT_EQ(second->load(), "world 1");
}

TEST_F(JobLeadershipTest, LateWriteOfFormerLeaderIsRejected) {
  const auto first = launcher(2), second = launcher(2);
  first->campaign("one:1");
  ASSERT_TRUE(comes_true([&] { return first->term() != 0; }));
  first->save("world 0");
  Client(StoreAddress::parse(etcd_->address()).members)
      .commit({.when = {}, .writes = {}, .removals = {{.first = "test/job/leader", .end = {}}}});
  EXPECT_THROW(first->save("world 1"), CommError);
  first->stand_down();
  second->campaign("two:2");
  ASSERT_TRUE(comes_true([&] { return second->term() != 0; }));
  EXPECT_EQ(second->load(), "world 0");
}

TEST_F(JobLeadershipTest, StandingDownGivesLeadershipAway) {
  const auto first = launcher(), second = launcher();
  first->campaign("one:1");
  ASSERT_TRUE(comes_true([&] { return first->term() != 0; }));
  second->campaign("two:2");
  first->stand_down();
  ASSERT_TRUE(comes_true([&] { return second->term() != 0; }));
  ASSERT_TRUE(comes_true([&] { return first->leader() == "two:2"; }));
  EXPECT_EQ(first->term(), 0);
}

TEST_F(JobLeadershipTest, RemovalBeginsTheJobAnew) {
  const auto first = launcher();
  EXPECT_EQ(first->claim_number(), 0);
  EXPECT_EQ(first->agree("start", "one"), "one");
  first->campaign("one:1");
  ASSERT_TRUE(comes_true([&] { return first->term() != 0; }));
  first->save("world 0");
  EXPECT_EQ(first->last_end(), std::nullopt);
  first->end("well");
  EXPECT_EQ(launcher()->last_end(), "well");
  EXPECT_EQ(first->claim_number(), 0);
  EXPECT_EQ(first->agree("start", "two"), "two");
  EXPECT_EQ(first->load(), std::nullopt);
}

}  // namespace
}  // namespace trireme::etcd
