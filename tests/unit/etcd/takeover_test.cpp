// Coordinators, etcd and members as real processes and threads. Failures are kills and freezes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/unit/etcd/members.h"
#include "trireme/etcd/store_address.h"
#include "trireme/http/http_client.h"

namespace trireme::etcd {
namespace {

using testing::HasSubstr;

/// The member of etcd that leads its cluster.
int leader_of_etcd(const test::EtcdCluster& etcd) {
  const auto store = StoreAddress::parse(etcd.address());
  for (int i = 0; i < etcd.size(); ++i) {
    const std::string url =
        text("http://", store.members[static_cast<std::size_t>(i)].text(), "/v3/maintenance/status");
    const std::string nothing = "{}";
    const http::Reply reply = http::Client().send({.url = url, .json = &nothing, .timeout_s = kWait_s});
    const auto status = nlohmann::json::parse(reply.body);
    if (status["leader"] == status["header"]["member_id"]) return i;
  }
  throw std::runtime_error("etcd has no leader");
}

class EtcdTakeover : public testing::Test {
 protected:
  void begin(int num_candidates, double lease_s) {
    etcd_ = std::make_unique<test::EtcdCluster>(3);
    store_ = etcd_->address("jobs/sum");
    for (int i = 0; i < num_candidates; ++i)
      candidates_.push_back(std::make_unique<CandidateProcess>(store_, lease_s));
  }
  void push(int count) {
    for (int i = 0; i < count; ++i) {
      const ps::Result pushed = members_->push_ones();
      ASSERT_EQ(pushed.error, ps::ErrorKind::kNone) << pushed.message;
    }
  }
  /// The coordinator accepts and writes a new table.
  void expect_a_working_coordinator(const std::string& table) {
    const ps::Result created = members_->create(table);
    EXPECT_EQ(created.error, ps::ErrorKind::kNone) << created.message;
    EXPECT_TRUE(comes_true([&] { return members_->map().table(table) != nullptr; }));
  }

  std::unique_ptr<test::EtcdCluster> etcd_;
  std::string store_;
  std::vector<std::unique_ptr<CandidateProcess>> candidates_;
  std::unique_ptr<Members> members_;
};

TEST_F(EtcdTakeover, AKilledMemberOfEtcdChangesNothing) {
  TRIREME_NEEDS_ETCD();
  begin(1, 10);
  ASSERT_TRUE(comes_true([&] { return !leader_in(store_).empty(); }));
  const std::string leader = leader_in(store_);
  members_ = std::make_unique<Members>(store_);
  push(50);
  etcd_->kill(leader_of_etcd(*etcd_));
  push(50);
  expect_a_working_coordinator("another");
  members_->add_server("c");  // and it moves partitions as it should
  EXPECT_TRUE(comes_true([&] {
    const auto map = members_->map();
    const auto has_c = [&](const ps::PartitionEntry& entry) {
      return std::ranges::any_of(entry.chain, [&](ps::ServerId id) { return map.server(id)->name == "c"; });
    };
    return std::ranges::any_of(map.partitions, has_c);
  }));
  push(50);
  members_->expect_exact_sums();
  EXPECT_EQ(leader_in(store_), leader);
}

TEST_F(EtcdTakeover, MembersFindSuccessorOfKilledLeader) {
  TRIREME_NEEDS_ETCD();
  begin(1, 3);
  ASSERT_TRUE(comes_true([&] { return !leader_in(store_).empty(); }));
  const std::string first = leader_in(store_);
  candidates_.push_back(std::make_unique<CandidateProcess>(store_, 3));
  members_ = std::make_unique<Members>(store_);
  push(20);
  const auto before = members_->map();
  candidates_[0]->kill();
  push(20);
  EXPECT_TRUE(comes_true([&] { return !leader_in(store_).empty() && leader_in(store_) != first; }));
  expect_a_working_coordinator("another");
  push(20);
  members_->expect_exact_sums();
  const auto after = members_->map();
  EXPECT_EQ(before.workers.begin()->second.life.incarnation, after.workers.begin()->second.life.incarnation);
  EXPECT_GT(after.version, before.version);
}

TEST_F(EtcdTakeover, FrozenLeaderIsReplacedAndWritesNothing) {
  TRIREME_NEEDS_ETCD();
  begin(1, 3);
  ASSERT_TRUE(comes_true([&] { return !leader_in(store_).empty(); }));
  const std::string first = leader_in(store_);
  candidates_.push_back(std::make_unique<CandidateProcess>(store_, 3));
  members_ = std::make_unique<Members>(store_);
  push(20);
  const auto before = members_->map();
  candidates_[0]->signal(SIGSTOP);
  push(20);
  EXPECT_TRUE(comes_true([&] { return !leader_in(store_).empty() && leader_in(store_) != first; }));
  expect_a_working_coordinator("another");  // members have changed to it, although no connection was closed
  candidates_[0]->signal(SIGCONT);
  push(20);
  expect_a_working_coordinator("a third");
  members_->expect_exact_sums();
  const auto after = members_->map();
  EXPECT_EQ(before.workers.begin()->second.life.incarnation, after.workers.begin()->second.life.incarnation);
  EXPECT_EQ(after.tables.size(), 3U);
  EXPECT_NE(leader_in(store_), first);
}

TEST_F(EtcdTakeover, EtcdLossKeepsDataAndNamesAttempts) {
  TRIREME_NEEDS_ETCD();
  begin(1, 3);
  ASSERT_TRUE(comes_true([&] { return !leader_in(store_).empty(); }));
  members_ = std::make_unique<Members>(store_);
  push(20);
  for (int i = 0; i < etcd_->size(); ++i) etcd_->kill(i);
  push(20);
  try {
    find_coordinator(store_);
    FAIL() << "somebody has answered";
  } catch (const CommError& error) {
    for (int i = 0; i < etcd_->size(); ++i) EXPECT_THAT(error.what(), HasSubstr(etcd_->member(i) + ": "));
  }
  std::this_thread::sleep_for(Seconds(5));  // the leader has given up by now
  push(20);
  members_->expect_exact_sums();
}

TEST_F(EtcdTakeover, StoppedLeaderYieldsAtOnce) {
  TRIREME_NEEDS_ETCD();
  begin(0, 2);
  for (int i = 0; i < 2; ++i) {
    const StopRequest stop;
    std::jthread asks_when_it_leads([&] {
      EXPECT_TRUE(comes_true([&] { return !leader_in(store_).empty(); }));
      ::kill(::getpid(), SIGTERM);
    });
    serve_with_etcd(candidate_options(store_, 60), at_a_free_port(&stop));
    EXPECT_THAT([&] { find_coordinator(store_); },
                testing::ThrowsMessage<CommError>(HasSubstr("no coordinator leads")));
  }
}

/// The view of an observer of both candidates, which does not know the leader.
TEST_F(EtcdTakeover, MetricsShowLeaderAndCandidates) {
  TRIREME_NEEDS_ETCD();
  begin(1, 3);
  ASSERT_TRUE(comes_true([&] { return !leader_in(store_).empty(); }));
  const StopRequest stop;
  std::promise<std::string> url;
  std::jthread watches([&] {
    const std::string at = url.get_future().get();
    const auto comes_to = [&](const std::string& line) {
      return comes_true([&] {
        return http::Client().send({.url = at, .timeout_s = kWait_s}).body.find("\n" + line + "\n") !=
               std::string::npos;
      });
    };
    EXPECT_TRUE(comes_to("trireme_ps_leads 0"));
    candidates_[0]->kill();
    EXPECT_TRUE(comes_to("trireme_ps_leads 1"));
    EXPECT_TRUE(comes_to("trireme_ps_cluster_partitions{state=\"unplaced\"} 8"));
    etcd_->kill(0);
    etcd_->kill(1);  // no candidate can lead any more
    EXPECT_TRUE(comes_to("trireme_ps_leads 0"));
    ::kill(::getpid(), SIGTERM);
  });
  ps::ServeOptions serve = at_a_free_port(&stop);
  serve.metrics = wire::Endpoint{"127.0.0.1", 0};
  serve.on_metrics = [&](const wire::Endpoint& endpoint) {
    url.set_value("http://" + endpoint.text() + "/metrics");
  };
  serve_with_etcd(candidate_options(store_, 3), serve);
}

TEST(ServeWithEtcd, RejectsInvalidOptions) {
  const StopRequest stop;
  ::kill(::getpid(), SIGTERM);
  const auto refusal = [&](const CandidateOptions& options, const ps::ServeOptions& serve) -> std::string {
    try {
      serve_with_etcd(options, serve);
      return "taken";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  const CandidateOptions good = candidate_options("etcd://127.0.0.1:1/x", 2);
  const ps::ServeOptions somewhere = at_a_free_port(&stop);
  EXPECT_EQ(refusal(good, somewhere), "taken");
  CandidateOptions bad = good;
  bad.store = "tcp:127.0.0.1:1";
  EXPECT_THAT(refusal(bad, somewhere), HasSubstr("etcd://HOST:PORT"));
  bad = good;
  bad.lease_s = 0.5;
  EXPECT_THAT(refusal(bad, somewhere), HasSubstr("shortest is 2 s"));
  bad = good;
  bad.coordinator.num_partitions = 3;
  EXPECT_THAT(refusal(bad, somewhere), HasSubstr("power of two"));
  ps::ServeOptions nowhere = somewhere;
  nowhere.loop.listen = {};
  EXPECT_THAT(refusal(good, nowhere), HasSubstr("has to listen"));
  ps::ServeOptions everywhere = somewhere;
  everywhere.loop.listen = {"tcp:0.0.0.0:0"};
  everywhere.loop.security = wire::Security::none();
  EXPECT_THAT(refusal(good, everywhere), HasSubstr("says nothing to others"));
}

}  // namespace
}  // namespace trireme::etcd
