#include "trireme/etcd/job_leadership.h"

#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/etcd/internal/client.h"
#include "trireme/etcd/internal/disk.h"
#include "trireme/etcd/internal/election.h"
#include "trireme/etcd/internal/keys.h"
#include "trireme/etcd/store_address.h"

namespace trireme::etcd {
namespace {

constexpr const char* kRecord = "record";
constexpr const char* kEnd = "/end";
// More hosts mean that launchers are started in a loop.
constexpr int kMostHosts = 1 << 20;
constexpr double kLook_s = 0.25;
// A launcher that was stopped for longer than that does not learn how its job has ended.
constexpr std::int64_t kEndIsKept_s = 3600;

/// Prefix of a job's keys. It differs from that of a parameter server with the same prefix.
std::string job_prefix(const StoreAddress& store) { return store.prefix + "/job"; }

}  // namespace

struct JobLeadership::State {
  JobLeadershipOptions options;
  StoreAddress store;
  std::string prefix;
  Client client;
  std::unique_ptr<Election> election{};
  std::shared_ptr<Term> term_of_disk{};
  std::optional<Disk> disk{};

  /// Creates the key, or returns the value that it has.
  std::optional<std::string> create(const std::string& key, const std::string& value) {
    const Outcome outcome =
        client.commit({.when = {{.key = key, .what = Transaction::Condition::What::kCreated, .is = 0}},
                       .writes = {{.key = key, .value = value}},
                       .removals = {}});
    if (outcome.happened) return std::nullopt;
    const auto& present = outcome.instead.at(0);
    return present ? present->value : "";
  }

  std::shared_ptr<Term> present_term() const { return election ? election->term() : nullptr; }

  /// The disk of the current term. Throws CommError if this launcher does not lead.
  Disk& own_disk() {
    const std::shared_ptr<Term> present = present_term();
    if (!present || !present->holds())
      throw CommError(text("this launcher does not lead the job in ", store.text(), " any more"));
    if (present != term_of_disk) {
      disk.emplace(Client(store.members), prefix, present);
      term_of_disk = present;
    }
    return *disk;
  }

  /// A failed write leaves a damaged file, which a new disk replaces. So each failure discards the disk.
  /// Every error becomes a CommError: a later try may succeed.
  template <class Call>
  auto with_disk(const Call& call) {
    try {
      return call(own_disk());
    } catch (const Error& error) {
      term_of_disk = nullptr;
      throw CommError(error.what());
    }
  }
};

JobLeadership::JobLeadership(JobLeadershipOptions options) {
  StoreAddress store = StoreAddress::parse(options.store);
  Client client(store.members);
  std::string prefix = job_prefix(store);
  state_ = std::make_unique<State>(State{.options = std::move(options),
                                         .store = std::move(store),
                                         .prefix = std::move(prefix),
                                         .client = std::move(client)});
}

JobLeadership::~JobLeadership() = default;

int JobLeadership::claim_number() {
  for (int number = 0; number < kMostHosts; ++number) {
    if (!state_->create(text(state_->prefix, "/hosts/", number), "")) return number;
  }
  throw CommError(text(state_->store.text(), " has had ", kMostHosts, " hosts: give the job another prefix"));
}

std::string JobLeadership::agree(const std::string& name, const std::string& value) {
  return state_->create(text(state_->prefix, "/agreed/", name), value).value_or(value);
}

void JobLeadership::campaign(const wire::Address& address) {
  state_->election.reset();
  state_->election = std::make_unique<Election>(ElectionOptions{.members = state_->store.members,
                                                                .key = leader_key(state_->prefix),
                                                                .address = address,
                                                                .lease_s = state_->options.lease_s,
                                                                .look_s = kLook_s,
                                                                .changed = [] {},
                                                                .trouble = state_->options.trouble});
}

void JobLeadership::stand_down() {
  if (state_->election) state_->election->stand_down();
}

std::int64_t JobLeadership::term() const {
  const std::shared_ptr<Term> term = state_->present_term();
  return term && term->holds() ? term->made_at() : 0;
}

wire::Address JobLeadership::leader() const {
  return state_->election ? state_->election->leader() : wire::Address();
}

std::optional<std::string> JobLeadership::load() {
  return state_->with_disk([](Disk& disk) -> std::optional<std::string> {
    const auto bytes = disk.read(kRecord);
    if (!bytes) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  });
}

void JobLeadership::save(const std::string& record) {
  const auto* first = reinterpret_cast<const std::byte*>(record.data());
  state_->with_disk(
      [&](Disk& disk) { disk.replace(kRecord, std::vector<std::byte>(first, first + record.size())); });
}

void JobLeadership::end(const std::string& how) {
  const std::shared_ptr<Term> term = state_->present_term();
  if (!term || !term->holds()) return;
  Transaction removal{.when = {term->condition()},
                      .writes = {{.key = state_->prefix + kEnd,
                                  .value = how,
                                  .lease = state_->client.grant(kEndIsKept_s)}},
                      .removals = {}};
  for (const char* each : {"/hosts/", "/agreed/", "/files/", "/parts/"}) {
    const std::string first = state_->prefix + each;
    removal.removals.push_back({.first = first, .end = end_of(first)});
  }
  state_->client.commit(removal);
}

std::optional<std::string> JobLeadership::last_end() {
  const std::optional<KeyValue> found = state_->client.get(state_->prefix + kEnd);
  return found ? std::optional(found->value) : std::nullopt;
}

}  // namespace trireme::etcd
