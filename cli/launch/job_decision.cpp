#include "cli/launch/job_decision.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "cli/launch/regroup.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

using wire::ElasticMember;
using wire::MemberReport;
using wire::MemberState;
using Kind = Decision::Kind;

bool can_take_ranks(const HostView& host, const JobLimits& limits) {
  return host.lives(limits.silent_host_s) && !host.report.is_leaving && host.report.capacity > 0;
}

Decision end_with(int exit_code, std::string reason) {
  return {.kind = Kind::kEnd, .end = {.exit_code = exit_code, .reason = std::move(reason)}};
}

/// The processes of a job, by their state.
class Processes {
 public:
  Processes(const JobView& view, const JobLimits& limits) : view_(view), limits_(limits) {
    for (const HostView& host : view.hosts) {
      for (const MemberReport& each : host.report.members) reports_.emplace(each.id, &each);
    }
    bool some_failed = view.is_lost;
    for (const ElasticMember& each : view.world.ranks) {
      const MemberReport* report = report_of(each.id);
      some_failed = some_failed || (report != nullptr && report->state >= MemberState::kFailed);
    }
    patience_s_ = some_failed ? limits.silent_host_s : limits.gone_host_s;
    for (const ElasticMember& each : view.world.ranks) add_rank(each);
    for (const HostView& host : view.hosts) add_candidates(host);
    replacements.insert(replacements.end(), elsewhere_.begin(), elsewhere_.end());
  }

  std::vector<ElasticMember> living{}, staying{};  ///< ranks; staying: on hosts that do not leave
  /// Ranks of the next world, without those that have handed over their state.
  std::vector<ElasticMember> remaining{};
  int num_done = 0, num_failed = 0;
  std::optional<int> exit_code{};  ///< of a rank that has failed
  bool is_final = false;           ///< it would fail again after a restart
  std::string failed{};            ///< the first failed rank
  /// For ranks of the next world, in their order: spares, processes of hosts that have joined, and
  /// replacements, which count as restarts.
  std::vector<ElasticMember> spares{}, fresh{}, replacements{};

  std::vector<ElasticMember> candidates() const {
    std::vector<ElasticMember> all = spares;
    all.insert(all.end(), fresh.begin(), fresh.end());
    all.insert(all.end(), replacements.begin(), replacements.end());
    return all;
  }

 private:
  const MemberReport* report_of(const std::string& id) const {
    const auto found = reports_.find(id);
    return found == reports_.end() ? nullptr : found->second;
  }
  const HostView* host_of(int node) const {
    const auto found = std::ranges::find(view_.hosts, node, &HostView::node);
    return found == view_.hosts.end() ? nullptr : &*found;
  }

  void add_rank(const ElasticMember& member) {
    const HostView* host = host_of(member.node);
    const MemberReport* report = report_of(member.id);
    const MemberState state = report == nullptr ? MemberState::kRunning : report->state;
    const bool is_there = host != nullptr && host->lives(patience_s_);
    if (state == MemberState::kDone) {
      ++num_done;
    } else if (state == MemberState::kRunning && is_there) {
      living.push_back(member);
      if (!host->report.is_leaving) staying.push_back(member);
      if (!view_.asked_to_leave.contains(member.node)) remaining.push_back(member);
    } else {
      note_failure(member, report);
      lost_on_.insert(member.node);
    }
  }

  void note_failure(const ElasticMember& member, const MemberReport* report) {
    const bool is_told = report != nullptr && report->state >= MemberState::kFailed;
    if (num_failed++ == 0) failed = text("rank ", view_.world.rank_of(member.id));
    if (!exit_code) exit_code = is_told ? report->exit_code : static_cast<int>(kExitComm);
    if (!is_told || report->state != MemberState::kFailedForGood) return;
    is_final = true;
    exit_code = report->exit_code;
    failed = text("rank ", view_.world.rank_of(member.id));
  }

  void add_candidates(const HostView& host) {
    if (!host.lives(limits_.silent_host_s) || host.report.is_leaving) return;
    int idle = 0, ranks = 0;
    for (const MemberReport& each : host.report.members) {
      if (each.state != MemberState::kRunning || view_.world.rank_of(each.id) >= 0) continue;
      spares.push_back({.id = each.id, .node = host.node});
      ++idle;
    }
    for (const ElasticMember& each : living) ranks += each.node == host.node ? 1 : 0;
    int room = host.report.capacity - ranks - idle;
    int number = 0;
    const auto add_new = [&](std::vector<ElasticMember>& to) {
      to.push_back(
          {.id = text(host.node, ".", view_.world.generation + 1, "-", number++), .node = host.node});
      --room;
    };
    for (int left = host.report.capacity - host.num_placed; left > 0 && room > 0; --left) add_new(fresh);
    // The places of failed processes are free, so they come first.
    while (room > 0) add_new(lost_on_.contains(host.node) ? replacements : elsewhere_);
  }

  const JobView& view_;
  const JobLimits& limits_;
  std::map<std::string, const MemberReport*> reports_;
  std::set<int> lost_on_;                 ///< hosts of ranks that have failed
  std::vector<ElasticMember> elsewhere_;  ///< replacements on others
  double patience_s_ = 0;
};

/// The next world, and how many replacements are in it.
struct NextWorld {
  wire::ElasticWorld world;
  int num_replacements = 0;
};

/// `ranks`: those of the present one that may be in it.
std::optional<NextWorld> next_of(const JobView& view, const JobLimits& limits, Processes processes,
                                 const std::vector<ElasticMember>& ranks) {
  const int left = std::max(0, limits.max_restarts - view.num_restarts);
  const bool all_new = processes.living.empty();
  if (!all_new || left == 0) {
    const std::size_t most = processes.num_failed > 0 ? static_cast<std::size_t>(left) : 0;
    processes.replacements.resize(std::min(processes.replacements.size(), most));
  }
  RegroupRequest request{.before = view.world,
                         .living = {},
                         .spares = processes.candidates(),
                         .sizes = view.sizes,
                         .wanted_ranks = limits.wanted_ranks,
                         .min_ranks = limits.min_ranks};
  for (const ElasticMember& each : ranks) {
    const auto waits = view.waiting.find(each.id);
    request.living.push_back(
        {.member = each, .sizes = waits == view.waiting.end() ? std::vector<int>() : waits->second.sizes});
  }
  const auto world = regroup(request);
  if (!world) return std::nullopt;
  NextWorld next{.world = *world};
  for (const ElasticMember& each : processes.replacements)
    next.num_replacements += world->rank_of(each.id) >= 0 ? 1 : 0;
  if (all_new) next.num_replacements = std::min(next.num_replacements, 1);
  return next;
}

/// For a world without ranks of an earlier one.
bool has_hosts(const JobView& view, const JobLimits& limits) {
  const int hosts = hosts_for_a_world(view, limits);
  return hosts >= limits.min_hosts && (hosts >= limits.wanted_hosts || view.settled_s >= limits.join_wait_s);
}

Decision first_world(const JobView& view, const JobLimits& limits) {
  if (!has_hosts(view, limits)) return {};
  wire::ElasticWorld world{.generation = 0};
  for (const HostView& host : view.hosts) {
    if (!can_take_ranks(host, limits)) continue;
    for (int rank = 0; rank < host.report.capacity && world.size() < limits.wanted_ranks; ++rank)
      world.ranks.push_back({.id = text(host.node, ".0-", rank), .node = host.node});
  }
  return {.kind = Kind::kNextWorld, .next = std::move(world)};
}

/// Of a world in which nothing has failed: hosts may have joined, or leave.
Decision in_good_order(const JobView& view, const JobLimits& limits, const Processes& processes) {
  if (view.wants_next || processes.num_done > 0) return {};
  const auto next = next_of(view, limits, processes, processes.staying);
  if (processes.staying.size() < processes.living.size())
    return {.kind = next ? Kind::kAskForNext : Kind::kStop};
  const bool grows = next && next->world.size() > view.world.size();
  return {.kind = grows ? Kind::kAskForNext : Kind::kNone};
}

Decision after_failure(const JobView& view, const JobLimits& limits, const Processes& processes) {
  const bool all_wait = std::ranges::all_of(
      processes.living, [&](const ElasticMember& each) { return view.waiting.contains(each.id); });
  if (!all_wait) return {};
  const bool some_failed = processes.num_failed > 0;
  const bool is_restart = !some_failed && !view.wants_next;
  if (is_restart && view.num_restarts >= limits.max_restarts) {
    std::string cause;
    for (const auto& [id, member] : view.waiting) {
      if (cause.empty()) cause = member.cause;
    }
    return end_with(kExitComm, text("no rank has ended, and the ranks have lost their world: ", cause,
                                    "; no restart is left (--max-restarts ", limits.max_restarts, ")"));
  }
  if (view.starts_again && processes.living.empty() && !has_hosts(view, limits)) return {};
  auto next = next_of(view, limits, processes, processes.remaining);
  // Hosts that leave have ranks in one more world, in which all ranks save and these end.
  if (!next && processes.remaining.size() < processes.living.size())
    next = next_of(view, limits, processes, processes.living);
  if (!next && processes.num_done > 0) {
    return end_with(processes.exit_code.value_or(kExitComm),
                    text(processes.num_done, " rank(s) have ended well, and ", processes.num_failed,
                         " failed, or were lost with their host, before they reported their end"));
  }
  if (!next) {
    return end_with(
        processes.exit_code.value_or(kExitComm),
        text(processes.remaining.size(), " rank(s) and ", processes.spares.size(),
             " spare(s) are left, and no world can be formed of them (--min-ranks ", limits.min_ranks, ")"));
  }
  return {.kind = Kind::kNextWorld,
          .next = next->world,
          .num_restarts = next->num_replacements + (is_restart ? 1 : 0)};
}

}  // namespace

int hosts_for_a_world(const JobView& view, const JobLimits& limits) {
  return static_cast<int>(
      std::ranges::count_if(view.hosts, [&](const HostView& host) { return can_take_ranks(host, limits); }));
}

Decision decide(const JobView& view, const JobLimits& limits) {
  if (view.world.generation < 0) return first_world(view, limits);
  const Processes processes(view, limits);
  if (view.stop_signal != 0) {
    return processes.living.empty() ? end_with(128 + view.stop_signal, "the job was told to stop")
                                    : Decision{};
  }
  if (processes.is_final) {
    const char* how = *processes.exit_code < 128 ? " has failed, and would fail again" : " was told to stop";
    return end_with(*processes.exit_code, processes.failed + how);
  }
  const bool some_failed = processes.num_failed > 0;
  if (processes.living.empty() && !some_failed) return end_with(kExitOk, "");
  return some_failed || view.is_lost ? after_failure(view, limits, processes)
                                     : in_good_order(view, limits, processes);
}

}  // namespace trireme::cli
