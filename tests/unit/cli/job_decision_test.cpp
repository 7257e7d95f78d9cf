// Decisions of the leader of an elastic job, in single situations and in whole jobs under random faults.

#include "cli/launch/job_decision.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>

#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using wire::MemberState;
using Kind = Decision::Kind;

HostView host_of(int node, int capacity, const std::vector<wire::MemberReport>& members, int placed) {
  return {
      .node = node, .report = {.beat = 1, .capacity = capacity, .members = members}, .num_placed = placed};
}

/// Two hosts with two ranks each, of which "1.0-1" has failed.
JobView failed_job() {
  JobView view;
  view.world = {.generation = 0, .ranks = {{"0.0-0", 0}, {"0.0-1", 0}, {"1.0-0", 1}, {"1.0-1", 1}}};
  view.hosts = {host_of(0, 2, {{"0.0-0"}, {"0.0-1"}}, 2),
                host_of(1, 2, {{"1.0-0"}, {"1.0-1", MemberState::kFailed, 3}}, 2)};
  for (const char* id : {"0.0-0", "0.0-1", "1.0-0"}) view.waiting[id] = {.sizes = {}, .cause = "rank 3 left"};
  view.is_lost = true;
  return view;
}

JobLimits limits_of(int restarts, int min_ranks) {
  return {
      .wanted_ranks = 4, .min_ranks = min_ranks, .wanted_hosts = 2, .min_hosts = 2, .max_restarts = restarts};
}

std::vector<std::string> ids(const Decision& decision) {
  std::vector<std::string> all;
  for (const auto& each : decision.next.ranks) all.push_back(each.id);
  return all;
}

TEST(JobDecision, WaitsUntilAllRanksHaveNoticed) {
  JobView view = failed_job();
  view.waiting.erase("0.0-1");
  EXPECT_EQ(decide(view, limits_of(1, 1)).kind, Kind::kNone);
}

TEST(JobDecision, ReplacementStartsForFailedRank) {
  const Decision next = decide(failed_job(), limits_of(1, 1));
  EXPECT_THAT(ids(next), ElementsAre("0.0-0", "0.0-1", "1.0-0", "1.1-0"));
  EXPECT_EQ(next.num_restarts, 1);
}

TEST(JobDecision, SparesComeBeforeReplacements) {
  JobView view = failed_job();
  view.hosts[0].report.members.push_back({"0.spare-0"});
  const Decision next = decide(view, limits_of(1, 1));
  EXPECT_THAT(ids(next), ElementsAre("0.0-0", "0.0-1", "1.0-0", "0.spare-0"));
  EXPECT_EQ(next.num_restarts, 0);
}

TEST(JobDecision, WithoutRestartsTheWorldIsSmaller) {
  EXPECT_THAT(ids(decide(failed_job(), limits_of(0, 2))), ElementsAre("0.0-0", "0.0-1", "1.0-0"));
  const Decision end = decide(failed_job(), limits_of(0, 4));
  EXPECT_EQ(end.kind, Kind::kEnd);
  EXPECT_EQ(end.end.exit_code, 3);
  EXPECT_THAT(end.end.reason, HasSubstr("3 rank(s) and 0 spare(s) are left"));
}

TEST(JobDecision, RanksOfASilentHostHaveFailed) {
  JobView view = failed_job();
  view.hosts[1].report.members[1].state = MemberState::kRunning;
  view.hosts[1].silent_s = 5;
  EXPECT_THAT(ids(decide(view, limits_of(0, 2))), ElementsAre("0.0-0", "0.0-1"));
  view.is_lost = false;
  view.waiting.clear();
  EXPECT_EQ(decide(view, limits_of(0, 2)).kind, Kind::kNone) << "its ranks may be fine";
}

TEST(JobDecision, EndNamesRanksThatHaveEndedWell) {
  JobView view = failed_job();
  view.waiting.clear();
  view.hosts[0].report.members = {{"0.0-0", MemberState::kDone}, {"0.0-1", MemberState::kDone}};
  view.hosts[1].silent_s = 100;
  view.hosts[1].report.members = {{"1.0-0"}, {"1.0-1"}};
  const Decision end = decide(view, limits_of(0, 2));
  EXPECT_EQ(end.kind, Kind::kEnd);
  EXPECT_EQ(end.end.exit_code, kExitComm);
  EXPECT_THAT(end.end.reason, HasSubstr("2 rank(s) have ended well, and 2 failed"));
}

TEST(JobDecision, JoiningHostGrowsWorldInGoodOrder) {
  JobView view = failed_job();
  view.world.ranks.pop_back();
  view.world.ranks.pop_back();
  view.hosts = {view.hosts[0], host_of(2, 2, {}, 0)};
  view.is_lost = false;
  view.waiting.clear();
  EXPECT_EQ(decide(view, limits_of(0, 2)).kind, Kind::kAskForNext);
  view.wants_next = true;
  EXPECT_EQ(decide(view, limits_of(0, 2)).kind, Kind::kNone);
  view.is_lost = true;
  view.waiting = {{"0.0-0", {}}, {"0.0-1", {}}};
  const Decision next = decide(view, limits_of(0, 2));
  EXPECT_THAT(ids(next), ElementsAre("0.0-0", "0.0-1", "2.1-0", "2.1-1"));
  EXPECT_EQ(next.num_restarts, 0);
  view.sizes = {1, 2, 3};
  view.wants_next = view.is_lost = false;
  EXPECT_EQ(decide(view, limits_of(0, 2)).kind, Kind::kAskForNext) << "three ranks are more than two";
  view.sizes = {1, 2};
  EXPECT_EQ(decide(view, limits_of(0, 2)).kind, Kind::kNone);
}

TEST(JobDecision, AHostLeavesIfEnoughRanksStay) {
  JobView view = failed_job();
  view.hosts[1].report = {.beat = 1, .capacity = 2, .is_leaving = true, .members = {{"1.0-0"}, {"1.0-1"}}};
  view.is_lost = false;
  view.waiting.clear();
  EXPECT_EQ(decide(view, limits_of(3, 2)).kind, Kind::kAskForNext);
  EXPECT_EQ(decide(view, limits_of(3, 3)).kind, Kind::kStop);
  view.wants_next = view.is_lost = true;
  view.asked_to_leave = {1};
  for (const char* id : {"0.0-0", "0.0-1", "1.0-0", "1.0-1"}) view.waiting[id] = {};
  EXPECT_THAT(ids(decide(view, limits_of(3, 2))), ElementsAre("0.0-0", "0.0-1"));
}

/// Ranks hand over the state of leaving hosts when they are asked to form the next world.
TEST(JobDecision, HostLeavesOnlyAfterHandOver) {
  JobView view = failed_job();
  for (HostView& host : view.hosts)
    for (wire::MemberReport& each : host.report.members) each.state = MemberState::kRunning;
  for (const char* id : {"0.0-0", "0.0-1", "1.0-0", "1.0-1"}) view.waiting[id] = {};
  view.wants_next = view.is_lost = true;
  view.hosts[1].report.is_leaving = true;  // since then
  const Decision next = decide(view, limits_of(3, 2));
  EXPECT_THAT(ids(next), ElementsAre("0.0-0", "0.0-1", "1.0-0", "1.0-1"));
  view.world = next.next;
  view.waiting.clear();
  view.wants_next = view.is_lost = false;
  EXPECT_EQ(decide(view, limits_of(3, 2)).kind, Kind::kAskForNext);
}

/// All launchers of a job were lost, and start again one by one.
TEST(JobDecision, JobThatStartsAgainAwaitsItsHosts) {
  JobView view = failed_job();
  view.hosts = {host_of(2, 2, {}, 0)};
  view.waiting.clear();
  view.is_lost = view.wants_next = false;
  JobLimits limits = limits_of(0, 4);
  limits.min_hosts = limits.wanted_hosts = 2;
  EXPECT_EQ(decide(view, limits).kind, Kind::kEnd);
  view.starts_again = true;
  view.settled_s = 1000;
  EXPECT_EQ(decide(view, limits).kind, Kind::kNone);
  view.hosts.push_back(host_of(3, 2, {}, 0));
  EXPECT_THAT(ids(decide(view, limits)), ElementsAre("2.1-0", "2.1-1", "3.1-0", "3.1-1"));
  limits.wanted_hosts = 3;
  view.settled_s = 0;
  EXPECT_EQ(decide(view, limits).kind, Kind::kNone) << "within --join-wait";
}

TEST(JobDecision, CountsLostWorldsWithoutFailedRank) {
  JobView view = failed_job();
  view.hosts[1].report.members[1].state = MemberState::kRunning;
  view.waiting["1.0-1"] = {};
  EXPECT_EQ(decide(view, limits_of(1, 4)).num_restarts, 1);
  view.num_restarts = 1;
  const Decision end = decide(view, limits_of(1, 4));
  EXPECT_EQ(end.kind, Kind::kEnd);
  EXPECT_THAT(end.end.reason, HasSubstr("no restart is left (--max-restarts 1)"));
}

/// Each host left after the ranks were asked to form a world without the other host.
TEST(JobDecision, HostsThatAllLeaveSaveFirst) {
  JobView view = failed_job();
  view.wants_next = true;
  view.waiting["1.0-1"] = {.sizes = {}, .cause = "hosts leave"};
  view.hosts[1].report.members[1].state = MemberState::kRunning;
  for (HostView& host : view.hosts) host.report.is_leaving = true;
  const Decision next = decide(view, limits_of(0, 2));
  EXPECT_THAT(ids(next), ElementsAre("0.0-0", "0.0-1", "1.0-0", "1.0-1"));
  EXPECT_EQ(next.num_restarts, 0);
  view.world = next.next;
  view.waiting.clear();
  view.is_lost = view.wants_next = false;
  EXPECT_EQ(decide(view, limits_of(0, 2)).kind, Kind::kStop);
}

TEST(JobDecision, AllRanksStartAgainAsOneRestart) {
  JobView view = failed_job();
  for (HostView& host : view.hosts)
    for (wire::MemberReport& each : host.report.members)
      each.state = MemberState::kFailed, each.exit_code = 4;
  const Decision next = decide(view, limits_of(1, 4));
  EXPECT_THAT(ids(next), ElementsAre("0.1-0", "0.1-1", "1.1-0", "1.1-1"));
  EXPECT_EQ(next.num_restarts, 1);
  EXPECT_EQ(decide(view, limits_of(0, 1)).end.exit_code, 4);
}

TEST(JobDecision, RecurringFailureEndsJob) {
  JobView view = failed_job();
  view.hosts[1].report.members[1] = {"1.0-1", MemberState::kFailedForGood, 5};
  view.waiting.clear();
  EXPECT_EQ(decide(view, limits_of(9, 1)).end.exit_code, 5);
}

TEST(JobDecision, TheFirstWorldWaitsForHosts) {
  JobView view;
  view.hosts = {host_of(0, 2, {}, 0)};
  JobLimits limits = limits_of(0, 2);
  EXPECT_EQ(decide(view, limits).kind, Kind::kNone);
  limits.min_hosts = 1;
  EXPECT_EQ(decide(view, limits).kind, Kind::kNone);
  view.settled_s = limits.join_wait_s;
  EXPECT_THAT(ids(decide(view, limits)), ElementsAre("0.0-0", "0.0-1"));
  view.hosts.push_back(host_of(1, 2, {}, 0));
  view.settled_s = 0;
  EXPECT_THAT(ids(decide(view, limits)), ElementsAre("0.0-0", "0.0-1", "1.0-0", "1.0-1"));
}

/// A job whose hosts and processes act at random, in steps. The leader decides after each step.
class SimulatedJob {
 public:
  explicit SimulatedJob(std::uint64_t seed) : random_(seed) {
    limits_ = {.wanted_ranks = 0,
               .min_ranks = 0,
               .wanted_hosts = pick(1, 4),
               .min_hosts = 1,
               .max_restarts = pick(0, 6)};
    capacity_ = pick(1, 4);
    limits_.min_hosts = pick(1, limits_.wanted_hosts);
    limits_.wanted_ranks = limits_.wanted_hosts * capacity_;
    limits_.min_ranks = pick(1, limits_.min_hosts * capacity_);
    if (pick(0, 2) == 0) step_of_sizes_ = pick(1, 3);
    has_etcd_ = pick(0, 1) == 0;
    for (int host = 0; host < limits_.wanted_hosts; ++host) join();
  }

  /// Runs until the job has ended. Returns the error, or "".
  std::string run() {
    for (int step = 0; step < 350 && wrong_.empty(); ++step) {
      view_.settled_s += 1;
      if (step < 150 && view_.world.generation >= 0) fault();
      live();
      const Decision decision = decide(view_, limits_);
      carry_out(decision);
      if (decision.kind == Kind::kEnd) return wrong_;
      if (step == 150) quiet_generation_ = view_.world.generation;
    }
    // There are no more failures. The job trains and is then asked to stop.
    if (wrong_.empty() && view_.is_lost) return "ranks wait for ever";
    if (wrong_.empty() && view_.world.generation > quiet_generation_ + 8)
      return "worlds follow each other for ever";
    return wrong_;
  }

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool rarely(int one_in) { return pick(1, one_in) == 1; }

  void join() {
    view_.hosts.push_back(host_of(num_hosts_++, capacity_, {}, 0));
    view_.settled_s = 0;
    if (rarely(4)) view_.hosts.back().report.members.push_back({text(view_.hosts.back().node, ".spare-0")});
  }

  void fault() {
    if (rarely(40)) join();
    HostView& host = view_.hosts[static_cast<std::size_t>(pick(0, static_cast<int>(view_.hosts.size()) - 1))];
    const bool may_go = host.node != leader_ || (has_etcd_ && elect_another());
    if (rarely(60) && may_go) host.silent_s = 1;  // disconnected with its ranks
    if (rarely(80) && may_go) host.report.is_leaving = true;
    for (wire::MemberReport& each : host.report.members) {
      if (each.state == MemberState::kRunning && rarely(60)) each = {each.id, MemberState::kFailed, 3};
    }
    if (rarely(100)) view_.is_lost = true;  // a connection
  }

  /// Elects a successor, which has the record of the last world and gets new reports. Returns whether there
  /// is one.
  bool elect_another() {
    std::vector<int> candidates;
    for (const HostView& host : view_.hosts)
      if (host.node != leader_ && host.silent_s == 0 && !host.report.is_leaving)
        candidates.push_back(host.node);
    if (candidates.empty()) return false;
    leader_ = candidates[static_cast<std::size_t>(pick(0, static_cast<int>(candidates.size()) - 1))];
    view_.waiting.clear();
    view_.sizes.clear();
    view_.asked_to_leave.clear();
    view_.is_lost = false;
    view_.wants_next = true;
    return true;
  }

  /// Ranks that detect a loss, or are asked to form a next world, wait for it some steps later.
  void live() {
    for (HostView& host : view_.hosts) host.silent_s += host.silent_s > 0 ? 1 : 0;
    bool some_gone = false;
    for (const auto& each : view_.world.ranks) some_gone = some_gone || !runs(each);
    const bool leaves = some_gone || view_.is_lost || (view_.wants_next && rarely(3));
    for (const auto& each : view_.world.ranks) {
      if (!leaves || !runs(each) || rarely(2)) continue;
      view_.waiting[each.id] = {.sizes = sizes(), .cause = "lost"};
      view_.is_lost = true;
      if (view_.sizes.empty()) view_.sizes = sizes();
    }
  }
  std::vector<int> sizes() const {
    std::vector<int> all;
    for (int size = step_of_sizes_; step_of_sizes_ > 1 && size <= limits_.wanted_ranks;
         size += step_of_sizes_)
      all.push_back(size);
    return all;
  }
  HostView* host_of_member(const wire::ElasticMember& member) {
    const auto found = std::ranges::find(view_.hosts, member.node, &HostView::node);
    return found == view_.hosts.end() ? nullptr : &*found;
  }
  bool runs(const wire::ElasticMember& member) {
    const HostView* host = host_of_member(member);
    if (host == nullptr || host->silent_s > 0) return false;
    const auto found = std::ranges::find(host->report.members, member.id, &wire::MemberReport::id);
    return found == host->report.members.end() || found->state == MemberState::kRunning;
  }

  void carry_out(const Decision& decision) {
    if (decision.kind == Kind::kAskForNext) {
      view_.wants_next = true;
      for (const HostView& host : view_.hosts)
        if (host.report.is_leaving) view_.asked_to_leave.insert(host.node);
    }
    if (decision.kind == Kind::kStop) view_.stop_signal = 15;
    if (decision.kind == Kind::kEnd) check_end(decision.end);
    if (decision.kind == Kind::kNextWorld) begin(decision);
    if (view_.stop_signal == 0) return;
    for (HostView& host : view_.hosts)
      for (wire::MemberReport& each : host.report.members) each.state = MemberState::kFailed;
  }

  /// A job may end only after it has used its hosts and restarts, or was asked to stop.
  void check_end(const wire::JobEnd& end) {
    if (view_.stop_signal != 0) return;
    const int left = num_staying();
    if (end.exit_code == 0) wrong_ = "a job whose ranks have failed has ended well";
    if (step_of_sizes_ <= 1 && left >= limits_.min_ranks &&
        end.reason.find("no restart") == std::string::npos)
      wrong_ = text("ended with ", left, " of ", limits_.min_ranks, " ranks: ", end.reason);
  }

  int num_staying() {
    int staying = 0;
    for (const auto& each : view_.world.ranks)
      staying += runs(each) && !host_of_member(each)->report.is_leaving;
    return staying;
  }

  void begin(const Decision& decision) {
    const wire::ElasticWorld& next = decision.next;
    std::set<std::string> there;
    for (const auto& each : next.ranks) {
      HostView* host = host_of_member(each);
      if (!there.insert(each.id).second) wrong_ = each.id + " has two ranks";
      if (host == nullptr || host->silent_s >= limits_.silent_host_s) wrong_ = each.id + " is on no host";
      if (host != nullptr && view_.asked_to_leave.contains(host->node) && step_of_sizes_ <= 1 &&
          num_staying() >= limits_.min_ranks)
        wrong_ = each.id + " is on a host that leaves";
      if (host != nullptr && host->silent_s == 0 && !runs(each)) wrong_ = each.id + " has ended";
    }
    if (next.generation != view_.world.generation + 1) wrong_ = "a world is missing";
    if (next.size() > limits_.wanted_ranks) wrong_ = "more ranks than wanted";
    if (view_.world.generation >= 0 && next.size() < limits_.min_ranks) wrong_ = "fewer ranks than wanted";
    view_.num_restarts += decision.num_restarts;
    if (view_.num_restarts > limits_.max_restarts) wrong_ = "more restarts than allowed";
    for (HostView& host : view_.hosts) start_on(host, next);
    view_.world = next;
    view_.waiting.clear();
    view_.asked_to_leave.clear();
    view_.is_lost = view_.wants_next = false;
  }

  /// The launcher's actions: removes processes that have ended, and starts those of the world.
  void start_on(HostView& host, const wire::ElasticWorld& next) {
    auto& members = host.report.members;
    std::erase_if(members,
                  [](const wire::MemberReport& each) { return each.state != MemberState::kRunning; });
    int ranks = 0;
    for (const auto& each : next.ranks) {
      if (each.node != host.node) continue;
      ++ranks;
      if (std::ranges::find(members, each.id, &wire::MemberReport::id) != members.end()) continue;
      members.push_back({each.id});
      ++host.num_placed;
    }
    if (ranks > capacity_ + 1) wrong_ = text(ranks, " ranks on a host with room for ", capacity_);
  }

  std::mt19937_64 random_;
  JobView view_;
  JobLimits limits_;
  int capacity_ = 1, num_hosts_ = 0, step_of_sizes_ = 1;
  int leader_ = 0;         ///< its host
  bool has_etcd_ = false;  ///< whether another host can lead after the loss of the leader
  int quiet_generation_ = 0;
  std::string wrong_;
};

TEST(JobDecision, KeepsItsPromisesUnderRandomFaults) {
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    const std::string wrong = SimulatedJob(seed).run();
    ASSERT_EQ(wrong, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace trireme::cli
