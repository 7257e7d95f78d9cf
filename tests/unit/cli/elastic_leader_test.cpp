// The leader of an elastic job, with the job's store: its takeover, and the publication of worlds.

#include "cli/launch/elastic_leader.h"

#include <gmock/gmock.h>

#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/wire/store_server.h"

namespace trireme::cli {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kCall_s = 5;

JobRecord two_hosts() {
  return {.leader = 0,
          .world = {.generation = 3, .ranks = {{"0.0-0", 0}, {"1.0-0", 1}}},
          .num_restarts = 2,
          .num_placed = {{0, 1}, {1, 1}}};
}

class ElasticLeaderTest : public testing::Test {
 protected:
  ElasticLeaderOptions options() const {
    return {
        .store = {.endpoint = server_.endpoint()},
        .node = 1,
        .limits = {.wanted_ranks = 2, .min_ranks = 1, .wanted_hosts = 2, .min_hosts = 1, .join_wait_s = 0},
        .say = [](const std::string&) {}};
  }
  void report(int node, const std::vector<wire::MemberReport>& members, int beat = 1) {
    store_.set(wire::kElasticHostsKey, "1", kCall_s);
    store_.set(wire::elastic_host_key(node),
               to_text(wire::HostReport{.beat = beat, .capacity = 1, .members = members}), kCall_s);
  }
  std::optional<wire::JobState> state() {
    const auto told = store_.get(wire::kJobStateKey, kCall_s);
    return told ? std::optional(wire::parse_job_state(*told)) : std::nullopt;
  }
  /// Waits until the leader has reached that generation. False at the deadline.
  bool comes_to(ElasticLeader& leader, int generation) {
    const auto deadline = Deadline::after_s(30);
    for (; !deadline.expired(); std::this_thread::sleep_for(Seconds(0.02))) {
      leader.look();
      if (state() && state()->generation == generation) return true;
    }
    return false;
  }

  wire::StoreServer server_{wire::listen_at({"127.0.0.1", 0}), {}};
  wire::StoreClient store_{{.endpoint = server_.endpoint()}};
};

TEST_F(ElasticLeaderTest, RecordsAreReadAsWritten) {
  const JobRecord found = parse_job_record(to_text(two_hosts()));
  EXPECT_EQ(found.world, two_hosts().world);
  EXPECT_EQ(found.leader, 0);
  EXPECT_EQ(found.num_restarts, 2);
  EXPECT_EQ(found.num_placed, two_hosts().num_placed);
  for (const char* bad : {"", "{}", "[1]", R"({"world": 1, "restarts": 0, "placed": []})"})
    EXPECT_THAT([&] { parse_job_record(bad); }, ThrowsMessage<CommError>(HasSubstr("prefix of its own")));
}

TEST_F(ElasticLeaderTest, SuccessorAsksRanksForTheNextWorld) {
  ElasticLeader leader(options());
  leader.take_over(two_hosts());
  ASSERT_TRUE(state());
  EXPECT_EQ(state()->generation, 3);
  EXPECT_TRUE(state()->wants_next);
  EXPECT_EQ(wire::parse_elastic_world(*store_.get(wire::elastic_world_key(3), kCall_s)), two_hosts().world);
}

/// Host 0, whose launcher led the job, is lost.
TEST_F(ElasticLeaderTest, SuccessorFormsWorldOfHostsThatReport) {
  ElasticLeader leader(options());
  leader.take_over(two_hosts());
  report(1, {{"1.0-0"}});
  store_.set(wire::waiting_member_key(4, "1.0-0"), to_text(wire::WaitingMember{.sizes = {}, .cause = "lost"}),
             kCall_s);
  store_.set(wire::lost_world_key(3), "lost", kCall_s);
  ASSERT_TRUE(comes_to(leader, 4));
  EXPECT_EQ(wire::parse_elastic_world(*store_.get(wire::elastic_world_key(4), kCall_s)),
            (wire::ElasticWorld{.generation = 4, .ranks = {{"1.0-0", 1}}}));
  EXPECT_EQ(store_.get(wire::rendezvous_outcome_key(3), kCall_s), "a rank has lost this world");
}

/// Host 0 is alive, and reports a little later than the ranks of host 1.
TEST_F(ElasticLeaderTest, SuccessorWaitsForReportsOfOtherHosts) {
  JobRecord record = two_hosts();
  record.leader = 2;
  ElasticLeader leader(options());
  leader.take_over(record);
  report(1, {{"1.0-0"}});
  for (const char* id : {"0.0-0", "1.0-0"})
    store_.set(wire::waiting_member_key(4, id), to_text(wire::WaitingMember{.sizes = {}, .cause = "lost"}),
               kCall_s);
  store_.set(wire::lost_world_key(3), "lost", kCall_s);
  leader.look();
  report(0, {{"0.0-0"}});
  ASSERT_TRUE(comes_to(leader, 4));
  EXPECT_EQ(wire::parse_elastic_world(*store_.get(wire::elastic_world_key(4), kCall_s)).size(), 2);
}

TEST_F(ElasticLeaderTest, UnsavedWorldIsNotPublished) {
  bool answers = false;
  std::vector<JobRecord> saved;
  ElasticLeaderOptions given = options();
  given.save = [&](const JobRecord& record) {
    if (!answers) throw CommError("etcd does not answer");
    saved.push_back(record);
  };
  ElasticLeader leader(given);
  report(1, {});
  EXPECT_THROW(leader.look(), CommError);
  EXPECT_FALSE(state());
  answers = true;
  ASSERT_TRUE(comes_to(leader, 0));
  ASSERT_EQ(saved.size(), 1U);
  EXPECT_EQ(saved[0].world.size(), 1);
  EXPECT_EQ(saved[0].num_placed, (std::map<int, int>{{1, 1}}));
}

TEST_F(ElasticLeaderTest, FormerLeaderFormsNoWorld) {
  bool leads = false;
  ElasticLeaderOptions given = options();
  given.leads = [&] { return leads; };
  ElasticLeader leader(given);
  report(1, {});
  leader.look();
  EXPECT_FALSE(state());
  leads = true;
  EXPECT_TRUE(comes_to(leader, 0));
}

}  // namespace
}  // namespace trireme::cli
