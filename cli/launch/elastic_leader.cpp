#include "cli/launch/elastic_leader.h"

#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

// Limit of a call to the store in this process.
constexpr double kOwnStoreCall_s = 10;
constexpr double kLook_s = 0.05, kLookWhileLost_s = 0.01;
// Time of several beats.
constexpr double kStillHeard_s = 2;
constexpr double kFollows_s = 1;

}  // namespace

std::string to_text(const JobRecord& record) {
  nlohmann::json placed = nlohmann::json::array();
  for (const auto& [node, number] : record.num_placed) placed.push_back({node, number});
  return nlohmann::json{{"leader", record.leader},
                        {"world", to_text(record.world)},
                        {"restarts", record.num_restarts},
                        {"placed", placed}}
      .dump();
}

JobRecord parse_job_record(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    JobRecord record{.leader = json.at("leader"),
                     .world = wire::parse_elastic_world(json.at("world")),
                     .num_restarts = json.at("restarts")};
    for (const auto& pair : json.at("placed")) record.num_placed[pair.at(0)] = pair.at(1);
    return record;
  } catch (const nlohmann::json::exception& error) {
    throw CommError(trireme::text("the record of the job is '", text.substr(0, 100), "', which is none (",
                                  error.what(), "): give the job a prefix of its own"));
  }
}

ElasticLeader::ElasticLeader(ElasticLeaderOptions options)
    : options_(std::move(options)), store_(options_.surroundings.connect(options_.store)) {
  joined_s_ = options_.surroundings.now_s();
}

void ElasticLeader::take_over(const JobRecord& record) {
  world_ = record.world;
  num_restarts_ = record.num_restarts;
  for (const auto& [node, number] : record.num_placed) {
    Host& host = hosts_[node];
    // That host failed as leader. Its launcher gets the time that a running launcher needs to follow.
    host.heard_s = options_.surroundings.now_s();
    if (node == record.leader) host.heard_s -= options_.limits.silent_host_s - kFollows_s;
    host.view.node = node;
    host.view.num_placed = number;
  }
  if (world_.generation < 0) return;
  is_taken_over_ = true;
  store_->set(wire::elastic_world_key(world_.generation), to_text(world_), kOwnStoreCall_s);
  state_.generation = world_.generation;
  state_.wants_next = true;
  write_state();
}

/// Running launchers soon find a new leader. A host that does not report is lost, even if its ranks run.
double ElasticLeader::Host::silent_s(double at_s, const JobLimits& limits) const {
  const double silent_s = at_s - heard_s;
  return has_reported || silent_s < limits.silent_host_s ? silent_s : limits.gone_host_s;
}

void ElasticLeader::look() {
  const double at_s = options_.surroundings.now_s();
  if (state_.end || at_s - looked_s_ < (is_lost_ ? kLookWhileLost_s : kLook_s)) return;
  // A launcher that was stopped itself has received no reports meanwhile.
  const double missed_s = looked_s_ > 0 ? at_s - looked_s_ - 1 : 0;
  if (missed_s > 0)
    for (auto& [node, host] : hosts_) host.heard_s += missed_s;
  looked_s_ = at_s;
  read_hosts(at_s);
  if (world_.generation >= 0) {
    if (!is_lost_ && store_->check(wire::lost_world_key(world_.generation), kOwnStoreCall_s)) {
      is_lost_ = true;
      // Ranks in its rendezvous would wait for ranks that have left.
      store_->compare_set(wire::rendezvous_outcome_key(world_.generation), "", "a rank has lost this world",
                          kOwnStoreCall_s);
    }
    read_waiting();
  }
  const JobView seen = view(at_s);
  say_if_hosts_are_missing(seen);
  const Decision decision = decide(seen, options_.limits);
  const bool is_done = decision.kind == Decision::Kind::kEnd && decision.end.exit_code == kExitOk;
  if (is_done || options_.leads()) carry_out(decision);
}

void ElasticLeader::say_if_hosts_are_missing(const JobView& view) {
  const int found = hosts_for_a_world(view, options_.limits);
  const bool waits = (view.world.generation < 0 || view.starts_again) && found < options_.limits.min_hosts;
  if (!waits || found == said_hosts_) return;
  said_hosts_ = found;
  options_.say(text("elastic: waiting for hosts: ", found, " of ", options_.limits.min_hosts, " (--nnodes)"));
}

void ElasticLeader::read_hosts(double at_s) {
  const int num_hosts = 1 + std::stoi(store_->get(wire::kElasticHostsKey, kOwnStoreCall_s).value_or("-1"));
  for (int node = 0; node < num_hosts; ++node) {
    const auto told = store_->get(wire::elastic_host_key(node), kOwnStoreCall_s);
    if (!told) continue;  // it writes its first report
    const bool is_new = !hosts_.contains(node);
    Host& host = hosts_[node];
    wire::HostReport report = wire::parse_host_report(*told);
    if (!host.has_reported || report.beat != host.view.report.beat) host.heard_s = at_s;
    host.has_reported = true;
    if (is_new) joined_s_ = at_s;
    if (is_new && options_.limits.wanted_hosts > 1)
      options_.say(text("elastic: host ", node, " has joined, with ", report.capacity, " rank(s)"));
    if (report.is_leaving && !host.view.report.is_leaving)
      options_.say(text("elastic: host ", node, " leaves"));
    host.view.node = node;
    host.view.report = std::move(report);
  }
}

void ElasticLeader::read_waiting() {
  if (!is_lost_) return;
  for (const wire::ElasticMember& each : world_.ranks) {
    if (waiting_.contains(each.id)) continue;
    const auto told = store_->get(wire::waiting_member_key(world_.generation + 1, each.id), kOwnStoreCall_s);
    if (!told) continue;
    wire::WaitingMember member = wire::parse_waiting_member(*told);
    if (!member.sizes.empty()) sizes_ = member.sizes;
    waiting_.emplace(each.id, std::move(member));
  }
}

JobView ElasticLeader::view(double at_s) const {
  JobView view{.world = world_,
               .waiting = waiting_,
               .is_lost = is_lost_,
               .wants_next = state_.wants_next,
               .asked_to_leave = asked_to_leave_,
               .starts_again = is_taken_over_,
               .stop_signal = state_.stop_signal,
               .sizes = sizes_,
               .settled_s = at_s - joined_s_,
               .num_restarts = num_restarts_};
  for (const auto& [node, host] : hosts_) {
    view.hosts.push_back(host.view);
    view.hosts.back().silent_s = host.silent_s(at_s, options_.limits);
    const bool is_of_world = std::ranges::any_of(
        world_.ranks, [&](const wire::ElasticMember& each) { return each.node == host.view.node; });
    if (is_of_world && host.has_reported) view.starts_again = false;
  }
  return view;
}

void ElasticLeader::carry_out(const Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::kNone:
      return;
    case Decision::Kind::kNextWorld:
      return begin(decision.next, decision.num_restarts);
    case Decision::Kind::kAskForNext:
      for (const auto& [node, host] : hosts_) {
        if (host.view.report.is_leaving) asked_to_leave_.insert(node);
      }
      state_.wants_next = true;
      return write_state();
    case Decision::Kind::kStop:
      options_.say(text("elastic: too few ranks would be left (--min-ranks ", options_.limits.min_ranks,
                        "): the ranks save their state and end"));
      return stop(SIGTERM);
    case Decision::Kind::kEnd:
      return end(decision.end);
  }
}

void ElasticLeader::begin(const wire::ElasticWorld& world, int num_restarts) {
  JobRecord next{.leader = options_.node,
                 .world = world,
                 .num_restarts = num_restarts_ + num_restarts,
                 .num_placed = {}};
  for (const auto& [node, host] : hosts_) next.num_placed[node] = host.view.num_placed;
  for (const wire::ElasticMember& each : world.ranks) {
    const bool is_new = each.id.starts_with(text(each.node, ".", world.generation, "-"));
    next.num_placed[each.node] += is_new ? 1 : 0;
  }
  options_.save(next);
  num_restarts_ = next.num_restarts;
  for (const auto& [node, number] : next.num_placed) hosts_[node].view.num_placed = number;
  world_ = world;
  waiting_.clear();
  asked_to_leave_.clear();
  is_lost_ = is_taken_over_ = false;
  store_->set(wire::elastic_world_key(world.generation), to_text(world), kOwnStoreCall_s);
  state_.generation = world.generation;
  state_.wants_next = false;
  write_state();
}

bool ElasticLeader::hears_others() {
  const double at_s = options_.surroundings.now_s();
  read_hosts(at_s);
  return std::ranges::any_of(hosts_, [&](const auto& host) {
    return host.first != options_.node && at_s - host.second.heard_s < kStillHeard_s;
  });
}

void ElasticLeader::stop(int signal) {
  if (state_.stop_signal != 0) return;
  state_.stop_signal = signal;
  write_state();
}

void ElasticLeader::end(const wire::JobEnd& end) {
  state_.end = end;
  write_state();
}

void ElasticLeader::write_state() { store_->set(wire::kJobStateKey, to_text(state_), kOwnStoreCall_s); }

}  // namespace trireme::cli
