#include "cli/launch/elastic_host.h"

#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

constexpr double kStoreCall_s = 2, kSilentStore_s = 15;
constexpr double kBeat_s = 0.25, kRead_s = 0.05, kReadWhileLost_s = 0.01;
constexpr int kMostBeats = 1 << 30;

int number_of_host(wire::StoreClient& store, bool is_first) {
  if (is_first) return 0;
  return static_cast<int>(store.add(wire::kElasticHostsKey, 1, store.options().timeout_s));
}

}  // namespace

ElasticHost::ElasticHost(wire::StoreClientOptions store, bool is_first, int capacity)
    : store_(std::move(store)), node_(number_of_host(store_, is_first)) {
  report_.capacity = capacity;
}

std::string ElasticHost::agree_on_start(const std::string& own) {
  return store_.compare_set(wire::kJobStartKey, "", own, store_.options().timeout_s);
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

void ElasticHost::leave() {
  report_.is_leaving = true;
  left_s_ = now_s();
}

/// A store that does not answer is asked again by the next call.
template <class Call>
void ElasticHost::call(const Call& call) {
  try {
    call();
    silent_since_s_ = 0;
  } catch (const CommError&) {
    if (silent_since_s_ == 0) silent_since_s_ = now_s();
  }
}

bool ElasticHost::exchange(std::vector<wire::MemberReport> members) {
  const double at_s = now_s();
  const bool has_changed = members != report_.members;
  report_.members = std::move(members);
  if (has_changed || at_s - reported_s_ >= kBeat_s) call([&] { write_report(at_s); });
  if (at_s - read_s_ >= (is_lost_ ? kReadWhileLost_s : kRead_s)) {
    read_s_ = at_s;
    call([&] { read_job(); });
  }
  return silent_since_s_ == 0 || now_s() - silent_since_s_ < kSilentStore_s;
}

void ElasticHost::write_report(double at_s) {
  report_.beat = (report_.beat + 1) % kMostBeats;
  store_.set(wire::elastic_host_key(node_), to_text(report_), kStoreCall_s);
  reported_s_ = at_s;
}

void ElasticHost::read_job() {
  if (const auto told = store_.get(wire::kJobStateKey, kStoreCall_s)) job_ = wire::parse_job_state(*told);
  if (job_.generation > world_.generation) {
    if (const auto told = store_.get(wire::elastic_world_key(job_.generation), kStoreCall_s))
      next_ = wire::parse_elastic_world(*told);
  } else if (world_.generation >= 0 && !is_lost_) {
    is_lost_ = store_.check({wire::lost_world_key(world_.generation)}, kStoreCall_s);
  }
}

void ElasticHost::give_up(const std::string& cause) {
  call([&] { store_.compare_set(wire::rendezvous_outcome_key(world_.generation), "", cause, kStoreCall_s); });
}

bool ElasticHost::waits(const std::string& id) {
  if (waiting_.contains(id)) return true;
  call([&] {
    if (store_.check({wire::waiting_member_key(world_.generation + 1, id)}, kStoreCall_s))
      waiting_.insert(id);
  });
  return waiting_.contains(id);
}

}  // namespace trireme::cli
