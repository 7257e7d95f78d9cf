#include "cli/launch/elastic_leader.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

// Of a call of the store that this process serves itself.
constexpr double kOwnStoreCall_s = 10;
constexpr double kLook_s = 0.05, kLookWhileLost_s = 0.01;
// Several beats.
constexpr double kStillHeard_s = 2;

}  // namespace

ElasticLeader::ElasticLeader(wire::StoreClientOptions store, const JobLimits& limits,
                             std::function<void(const std::string&)> say)
    : limits_(limits), say_(std::move(say)), store_(std::move(store)) {
  joined_s_ = now_s();
}

void ElasticLeader::look() {
  const double at_s = now_s();
  if (state_.end || at_s - looked_s_ < (is_lost_ ? kLookWhileLost_s : kLook_s)) return;
  // A launcher that was stopped itself has heard of nobody.
  const double missed_s = looked_s_ > 0 ? at_s - looked_s_ - 1 : 0;
  if (missed_s > 0)
    for (auto& [node, host] : hosts_) host.heard_s += missed_s;
  looked_s_ = at_s;
  read_hosts(at_s);
  if (world_.generation >= 0) {
    is_lost_ = is_lost_ || store_.check({wire::lost_world_key(world_.generation)}, kOwnStoreCall_s);
    read_waiting();
  }
  carry_out(decide(view(at_s), limits_));
}

void ElasticLeader::read_hosts(double at_s) {
  const int num_hosts = 1 + std::stoi(store_.get(wire::kElasticHostsKey, kOwnStoreCall_s).value_or("0"));
  for (int node = 0; node < num_hosts; ++node) {
    const auto told = store_.get(wire::elastic_host_key(node), kOwnStoreCall_s);
    if (!told) continue;  // it writes its first report
    const bool is_new = !hosts_.contains(node);
    Host& host = hosts_[node];
    wire::HostReport report = wire::parse_host_report(*told);
    if (is_new || report.beat != host.view.report.beat) host.heard_s = at_s;
    if (is_new) joined_s_ = at_s;
    if (is_new && limits_.wanted_hosts > 1)
      say_(text("elastic: host ", node, " has joined, with ", report.capacity, " rank(s)"));
    if (report.is_leaving && !host.view.report.is_leaving) say_(text("elastic: host ", node, " leaves"));
    host.view.node = node;
    host.view.report = std::move(report);
  }
}

void ElasticLeader::read_waiting() {
  if (!is_lost_) return;
  for (const wire::ElasticMember& each : world_.ranks) {
    if (waiting_.contains(each.id)) continue;
    const auto told = store_.get(wire::waiting_member_key(world_.generation + 1, each.id), kOwnStoreCall_s);
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
               .stop_signal = state_.stop_signal,
               .sizes = sizes_,
               .settled_s = at_s - joined_s_,
               .num_restarts = num_restarts_};
  for (const auto& [node, host] : hosts_) {
    view.hosts.push_back(host.view);
    view.hosts.back().silent_s = at_s - host.heard_s;
  }
  return view;
}

void ElasticLeader::carry_out(const Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::kNone:
      return;
    case Decision::Kind::kNextWorld:
      num_restarts_ += decision.num_restarts;
      return begin(decision.next);
    case Decision::Kind::kAskForNext:
      state_.wants_next = true;
      return write_state();
    case Decision::Kind::kStop:
      say_(text("elastic: too few ranks would be left (--min-ranks ", limits_.min_ranks,
                "): the ranks save their state and end"));
      return stop(SIGTERM);
    case Decision::Kind::kEnd:
      return end(decision.end);
  }
}

void ElasticLeader::begin(const wire::ElasticWorld& world) {
  for (const wire::ElasticMember& each : world.ranks) {
    const bool is_new = each.id.starts_with(text(each.node, ".", world.generation, "-"));
    hosts_[each.node].view.num_placed += is_new ? 1 : 0;
  }
  world_ = world;
  waiting_.clear();
  is_lost_ = false;
  store_.set(wire::elastic_world_key(world.generation), to_text(world), kOwnStoreCall_s);
  state_.generation = world.generation;
  state_.wants_next = false;
  write_state();
}

bool ElasticLeader::hears_others() {
  const double at_s = now_s();
  read_hosts(at_s);
  return std::ranges::any_of(hosts_, [&](const auto& host) {
    return host.first != 0 && at_s - host.second.heard_s < kStillHeard_s;
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

void ElasticLeader::write_state() { store_.set(wire::kJobStateKey, to_text(state_), kOwnStoreCall_s); }

}  // namespace trireme::cli
