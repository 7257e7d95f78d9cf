#include "cli/launch/elastic_host.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

constexpr double kStoreCall_s = 2;
constexpr double kBeat_s = 0.25, kRead_s = 0.05, kReadWhileLost_s = 0.01;
constexpr int kMostBeats = 1 << 30;

/// In which a process was started: 2 for "1.2-0". None: it was started as a spare.
std::optional<int> generation_of(const std::string& member) {
  const std::size_t dot = member.find('.') + 1;
  int generation = 0;
  const auto [end, error] = std::from_chars(member.data() + std::min(dot, member.size()),
                                            member.data() + member.size(), generation);
  return error == std::errc() ? std::optional(generation) : std::nullopt;
}

}  // namespace

ElasticHost::ElasticHost(JobSurroundings& surroundings, const wire::StoreClientOptions& store, int node,
                         int capacity, double patience_s)
    : surroundings_(surroundings), store_(surroundings.connect(store)), node_(node), patience_s_(patience_s) {
  report_.capacity = capacity;
  join(*store_);
}

/// The leader reads the reports of hosts up to the highest number.
void ElasticHost::join(JobStore& store) const {
  std::string highest = store.get(wire::kElasticHostsKey, kStoreCall_s).value_or("");
  while (highest.empty() || std::stoi(highest) < node_) {
    const std::string found = store.compare_set(wire::kElasticHostsKey, highest, text(node_), kStoreCall_s);
    if (found == text(node_)) return;
    highest = found;
  }
}

void ElasticHost::move_to(const wire::StoreClientOptions& store) {
  wire::StoreClientOptions options = store;
  options.timeout_s = kStoreCall_s;
  auto next = surroundings_.connect(options);
  join(*next);
  store_ = std::move(next);
  job_ = {};
  waiting_.clear();
  next_.reset();
  reported_s_ = read_s_ = silent_since_s_ = 0;
}

wire::ElasticMember ElasticHost::new_spare() {
  return {.id = text(node_, ".spare-", num_spares_++), .node = node_};
}

void ElasticHost::enter(const wire::ElasticWorld& world) {
  world_ = world;
  next_.reset();
  waiting_.clear();
  is_lost_ = false;
}

bool ElasticHost::has_just_joined() const {
  std::optional<int> first_here, first_elsewhere;
  for (const wire::ElasticMember& each : world_.ranks) {
    const std::optional<int> began = generation_of(each.id);
    std::optional<int>& first = each.node == node_ ? first_here : first_elsewhere;
    if (began) first = std::min(first.value_or(*began), *began);
  }
  return !has_trained_ && first_here && first_elsewhere && *first_elsewhere < *first_here;
}

void ElasticHost::leave() {
  report_.is_leaving = true;
  left_s_ = surroundings_.now_s();
}

/// If the store does not answer, the next call tries again.
template <class Call>
void ElasticHost::call(const Call& call) {
  try {
    call();
    silent_since_s_ = 0;
  } catch (const CommError&) {
    if (silent_since_s_ == 0) silent_since_s_ = surroundings_.now_s();
  }
}

bool ElasticHost::exchange(std::vector<wire::MemberReport> members) {
  const double at_s = surroundings_.now_s();
  const bool has_changed = members != report_.members;
  report_.members = std::move(members);
  if (has_changed || at_s - reported_s_ >= kBeat_s) call([&] { write_report(at_s); });
  // At most one call per exchange() waits for a silent store.
  if (silent_since_s_ == 0 && at_s - read_s_ >= (is_lost_ ? kReadWhileLost_s : kRead_s)) {
    read_s_ = at_s;
    call([&] { read_job(); });
  }
  return silent_since_s_ == 0 || surroundings_.now_s() - silent_since_s_ < patience_s_;
}

void ElasticHost::write_report(double at_s) {
  report_.beat = (report_.beat + 1) % kMostBeats;
  store_->set(wire::elastic_host_key(node_), to_text(report_), kStoreCall_s);
  reported_s_ = at_s;
}

void ElasticHost::read_job() {
  if (const auto told = store_->get(wire::kJobStateKey, kStoreCall_s)) {
    const std::optional<wire::JobEnd> end = job_.end;
    job_ = wire::parse_job_state(*told);
    if (end) job_.end = end;  // a store of this host may have a state from before learn_end()
  }
  if (job_.generation > world_.generation) {
    if (const auto told = store_->get(wire::elastic_world_key(job_.generation), kStoreCall_s))
      next_ = wire::parse_elastic_world(*told);
  } else if (world_.generation >= 0 && !is_lost_) {
    is_lost_ = store_->check(wire::lost_world_key(world_.generation), kStoreCall_s);
  }
}

void ElasticHost::give_up(const std::string& cause) {
  call(
      [&] { store_->compare_set(wire::rendezvous_outcome_key(world_.generation), "", cause, kStoreCall_s); });
}

bool ElasticHost::waits(const std::string& id) {
  if (waiting_.contains(id)) return true;
  if (silent_since_s_ != 0) return false;
  call([&] {
    if (store_->check(wire::waiting_member_key(world_.generation + 1, id), kStoreCall_s)) waiting_.insert(id);
  });
  return waiting_.contains(id);
}

}  // namespace trireme::cli
