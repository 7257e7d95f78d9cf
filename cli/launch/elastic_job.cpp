#include "cli/launch/elastic_job.h"

#include <utility>

#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

// Of a call of the store that this process serves itself.
constexpr double kStoreCall_s = 10;

}  // namespace

ElasticJob::ElasticJob(wire::StoreClientOptions store, const ElasticOptions& options)
    : options_(options), store_(std::move(store)) {}

wire::ElasticMember ElasticJob::new_member() { return {.id = text("0.", num_members_++), .node = 0}; }

void ElasticJob::begin(std::vector<wire::ElasticMember> ranks) {
  begin(wire::ElasticWorld{.generation = world_.generation + 1, .ranks = std::move(ranks)});
}

void ElasticJob::begin(const wire::ElasticWorld& next) {
  world_ = next;
  waiting_.clear();
  store_.set(wire::elastic_world_key(world_.generation), to_text(world_), kStoreCall_s);
}

bool ElasticJob::is_lost() { return store_.check({wire::lost_world_key(world_.generation)}, kStoreCall_s); }

void ElasticJob::give_up(const std::string& cause) {
  store_.compare_set(wire::rendezvous_outcome_key(world_.generation), "", cause, kStoreCall_s);
}

bool ElasticJob::waits(const std::string& id) {
  if (waiting_.contains(id)) return true;
  const auto told = store_.get(wire::waiting_member_key(world_.generation + 1, id), kStoreCall_s);
  if (told) waiting_.emplace(id, wire::parse_waiting_member(*told));
  return told.has_value();
}

std::string ElasticJob::cause() const {
  for (const auto& [id, member] : waiting_) {
    if (!member.cause.empty()) return member.cause;
  }
  return "";
}

std::optional<wire::ElasticWorld> ElasticJob::next(const std::vector<wire::ElasticMember>& living,
                                                   const std::vector<wire::ElasticMember>& spares) const {
  RegroupRequest request{.before = world_,
                         .living = {},
                         .spares = spares,
                         .wanted_ranks = options_.wanted_ranks,
                         .min_ranks = options_.min_ranks};
  for (const wire::ElasticMember& each : living) {
    const auto waiting = waiting_.find(each.id);
    request.living.push_back(
        {.member = each, .sizes = waiting == waiting_.end() ? std::vector<int>() : waiting->second.sizes});
  }
  return regroup(request);
}

}  // namespace trireme::cli
