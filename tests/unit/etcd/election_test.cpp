#include "trireme/etcd/internal/election.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/etcd/members.h"
#include "trireme/etcd/store_address.h"

namespace trireme::etcd {
namespace {

class EtcdElection : public testing::Test {
 protected:
  void SetUp() override {
    TRIREME_NEEDS_ETCD();
    etcd_ = std::make_unique<test::EtcdCluster>(1);
    members_ = StoreAddress::parse(etcd_->address()).members;
  }
  std::unique_ptr<Election> candidate(const std::string& name, double lease_s) {
    return std::make_unique<Election>(ElectionOptions{.members = members_,
                                                      .key = "test/leader",
                                                      .address = name,
                                                      .lease_s = lease_s,
                                                      .look_s = 0.05,
                                                      .changed = [] {},
                                                      .trouble =
                                                          [this](const std::string& line) {
                                                            const std::lock_guard lock(mutex_);
                                                            troubles_.push_back(line);
                                                          }});
  }
  static bool leads(const Election& election) {
    const auto term = election.term();
    return term && term->holds();
  }

  std::unique_ptr<test::EtcdCluster> etcd_;
  std::vector<wire::Endpoint> members_;
  std::mutex mutex_;
  std::vector<std::string> troubles_;
};

TEST_F(EtcdElection, OneOfManyLeadsThenTheNext) {
  std::vector<std::unique_ptr<Election>> all;
  for (int i = 0; i < 5; ++i) all.push_back(candidate(std::to_string(i), 60));
  Revision before = 0;
  while (!all.empty()) {
    const auto one_leads = [&] {
      return std::ranges::any_of(all, [](const auto& each) { return leads(*each); });
    };
    ASSERT_TRUE(comes_true(one_leads));
    EXPECT_EQ(std::ranges::count_if(all, [](const auto& each) { return leads(*each); }), 1);
    const auto leader = std::ranges::find_if(all, [](const auto& each) { return leads(*each); });
    const auto term = (*leader)->term();
    EXPECT_GT(term->made_at(), before);
    before = term->made_at();
    all.erase(leader);  // it resigns, so that no candidate waits for the end of its lease
    EXPECT_FALSE(term->holds());
  }
}

TEST_F(EtcdElection, RemovedKeyEndsLeadership) {
  const auto election = candidate("one", 60);
  ASSERT_TRUE(comes_true([&] { return leads(*election); }));
  const auto first = election->term();
  Client(members_).commit({.when = {}, .writes = {}, .removals = {{.first = "test/leader", .end = {}}}});
  EXPECT_TRUE(comes_true([&] { return !first->holds(); }));
  EXPECT_TRUE(comes_true([&] { return leads(*election) && election->term() != first; }));
}

TEST_F(EtcdElection, LeaderWithoutEtcdStopsAtLeaseEnd) {
  const auto election = candidate("one", 2);
  ASSERT_TRUE(comes_true([&] { return leads(*election); }));
  const auto first = election->term();
  etcd_->signal(0, SIGSTOP);
  EXPECT_TRUE(comes_true([&] { return !first->holds(); }));
  etcd_->signal(0, SIGCONT);
  EXPECT_TRUE(comes_true([&] { return leads(*election); })) << "it comes back";
  const std::lock_guard lock(mutex_);
  ASSERT_FALSE(troubles_.empty());
  EXPECT_THAT(troubles_.front(), testing::HasSubstr(etcd_->member(0)));
}

TEST_F(EtcdElection, ALeaderThatLivesKeepsItsLease) {
  const auto election = candidate("one", 5);
  ASSERT_TRUE(comes_true([&] { return leads(*election); }));
  const auto term = election->term();
  std::this_thread::sleep_for(Seconds(8));
  EXPECT_TRUE(term->holds());
  EXPECT_EQ(election->term(), term);
}

}  // namespace
}  // namespace trireme::etcd
