#include "simulated_surroundings.h"

#include <signal.h>

#include <algorithm>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

constexpr const char* kFirstStore = "sim:1";
constexpr double kLease_s = 3, kElect_s = 0.25, kEtcdCall_s = 2;
// Of calls: no answer comes, whether they have had an effect or not.
constexpr double kLostCalls = 0.0005, kLostSaves = 0.02;

class OpenStore : public ServedStore {
 public:
  OpenStore(wire::Endpoint endpoint, std::function<void()> close)
      : endpoint_(std::move(endpoint)), close_(std::move(close)) {}
  ~OpenStore() override { close_(); }
  wire::Endpoint endpoint() const override { return endpoint_; }

 private:
  wire::Endpoint endpoint_;
  std::function<void()> close_;
};

}  // namespace

/// `caller`: a launcher, which waits for a store that does not answer; null: a process, whose call fails
/// then.
class SimulatedJob::StoreClient : public JobStore {
 public:
  StoreClient(SimulatedJob& job, Launcher* caller, wire::Endpoint endpoint)
      : job_(job), caller_(caller), endpoint_(std::move(endpoint)) {}

  const wire::Endpoint& endpoint() const override { return endpoint_; }

  Store& reach(double timeout_s) {
    const auto found = job_.stores_.find(endpoint_.text());
    if (found == job_.stores_.end()) throw CommError(text("no store at ", endpoint_.text()));
    const std::shared_ptr<Store> store = found->second;
    const double end_s = job_.now_s_ + timeout_s;
    const auto answers = [&] {
      return store->server == caller_ || job_.now_s_ >= store->server->stopped_until_s;
    };
    while (store->is_open && !answers() && caller_ != nullptr && job_.now_s_ < end_s)
      job_.wait(*caller_, std::min(0.1, timeout_s));
    if (!store->is_open) throw CommError(text("the store at ", endpoint_.text(), " is gone"));
    if (!answers()) throw CommError(text("the store at ", endpoint_.text(), " does not answer"));
    if (store->server != caller_ && job_.happens(kLostCalls))
      throw CommError(text("the connection to ", endpoint_.text(), " was reset"));
    return *store;
  }

  void set(const std::string& key, const std::string& value, double timeout_s) override {
    reach(timeout_s).values[key] = value;
    lose_answer();
  }
  std::optional<std::string> get(const std::string& key, double timeout_s) override {
    const Store& store = reach(timeout_s);
    const auto found = store.values.find(key);
    return found == store.values.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t add(const std::string& key, std::int64_t number, double timeout_s) override {
    std::string& value = reach(timeout_s).values[key];
    value = text((value.empty() ? 0 : std::stoll(value)) + number);
    return std::stoll(value);
  }
  bool check(const std::string& key, double timeout_s) override {
    return reach(timeout_s).values.contains(key);
  }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& value,
                          double timeout_s) override {
    std::string& present = reach(timeout_s).values[key];
    if (present == expected || (expected.empty() && present.empty())) present = value;
    const std::string result = present;
    lose_answer();
    return result;
  }

 private:
  void lose_answer() {
    const auto found = job_.stores_.find(endpoint_.text());
    if (found->second->server != caller_ && job_.happens(kLostCalls))
      throw CommError(text("the connection to ", endpoint_.text(), " was reset after the call"));
  }

  SimulatedJob& job_;
  Launcher* const caller_;
  const wire::Endpoint endpoint_;
};

// Leader election

void SimulatedJob::Etcd::elect(Launcher& launcher, double now_s) {
  launcher.elect_s = now_s + kElect_s;
  if (is_down(now_s)) return;
  Election& candidate = *launcher.election;
  const bool is_free = leader == nullptr || now_s > lease_until_s;
  if (is_free && !candidate.address_.empty()) {
    leader = &launcher;
    address = candidate.address_;
    candidate.own_term_ = ++term;
    lease_until_s = now_s + kLease_s;
    candidate.job_.print(text("host ", launcher.number, " is elected, term ", term));
  }
  if (leader == &launcher && candidate.own_term_ == term && !candidate.address_.empty())
    lease_until_s = candidate.holds_until_s_ = now_s + kLease_s;
  candidate.seen_ = leader != nullptr && now_s <= lease_until_s ? address : "";
}

void SimulatedJob::Etcd::release(Launcher& launcher, double now_s) {
  if (leader == &launcher && !is_down(now_s)) leader = nullptr;
}

void SimulatedJob::Election::call() const {
  if (!job_.etcd_->is_down(job_.now_s_)) return;
  job_.wait(launcher_, kEtcdCall_s);
  if (job_.etcd_->is_down(job_.now_s_)) throw CommError("etcd does not answer");
}

void SimulatedJob::Election::call_as_leader() const {
  call();
  const Etcd& etcd = *job_.etcd_;
  if (term() == 0 || etcd.leader != &launcher_ || etcd.term != own_term_ || job_.now_s_ > etcd.lease_until_s)
    throw CommError("this launcher does not lead the job any more");
}

int SimulatedJob::Election::claim_number() {
  call();
  return job_.etcd_->num_hosts++;
}

std::string SimulatedJob::Election::agree(const std::string& name, const std::string& value) {
  call();
  return job_.etcd_->agreed.try_emplace(name, value).first->second;
}

void SimulatedJob::Election::campaign(const wire::Address& address) {
  address_ = address;
  launcher_.elect_s = job_.now_s_ + job_.random(0, kElect_s);
}

void SimulatedJob::Election::stand_down() {
  address_.clear();
  own_term_ = 0;
  holds_until_s_ = 0;
  job_.etcd_->release(launcher_, job_.now_s_);
}

std::int64_t SimulatedJob::Election::term() const { return job_.now_s_ < holds_until_s_ ? own_term_ : 0; }

std::optional<std::string> SimulatedJob::Election::load() {
  call_as_leader();
  return job_.etcd_->record;
}

void SimulatedJob::Election::save(const std::string& record) {
  call_as_leader();
  job_.etcd_->record = record;
  if (job_.happens(kLostSaves)) throw CommError("etcd has not answered in time");
}

void SimulatedJob::Election::end(const std::string& how) {
  call_as_leader();
  job_.etcd_->last_end = how;
  job_.etcd_->record.reset();
  job_.etcd_->agreed.clear();
}

std::optional<std::string> SimulatedJob::Election::last_end() {
  call();
  return job_.etcd_->last_end;
}

// What ElasticJob uses

ElasticJobOptions SimulatedJob::Surroundings::options(const JobLimits& limits) {
  const auto print = [&job = job_, number = launcher_.number](const std::string& line) {
    job.print(text("host ", number, " says: ", line));
  };
  const bool has_etcd = job_.options_.has_etcd;
  return {.capacity = 2,
          .limits = limits,
          .store = wire::Endpoint::parse(kFirstStore, "the simulation"),
          .is_first = launcher_.number == 0,
          .rendezvous = has_etcd ? "etcd://sim:2379/job" : "",
          .address = "sim",
          .start_id = text("start-", launcher_.number),
          .say = print,
          .note = print,
          .stop_signal = [&launcher = launcher_] { return launcher.is_told ? SIGTERM : 0; },
          .surroundings = *this};
}

std::unique_ptr<JobStore> SimulatedJob::Surroundings::of_process(Process& process) {
  std::string address = kFirstStore;
  if (job_.options_.has_etcd) std::getline(std::ifstream(launcher_.job->store_file()), address);
  if (std::exchange(process.store, address) != address) process.has_registered = false;
  return std::make_unique<StoreClient>(job_, nullptr, wire::Endpoint::parse(address, "the simulation"));
}

std::unique_ptr<JobStore> SimulatedJob::Surroundings::connect(const wire::StoreClientOptions& store) {
  auto client = std::make_unique<StoreClient>(job_, &launcher_, store.endpoint);
  client->reach(store.timeout_s);
  return client;
}

bool SimulatedJob::Surroundings::listens(const wire::Endpoint& endpoint, double /*timeout_s*/) {
  // The first launcher serves the store before it joins.
  if (launcher_.number == 0 && !job_.options_.has_etcd && !job_.stores_.contains(kFirstStore))
    job_.stores_[kFirstStore] = std::make_shared<Store>(Store{.server = &launcher_});
  const auto found = job_.stores_.find(endpoint.text());
  return found != job_.stores_.end() && found->second->is_open;
}

std::unique_ptr<ServedStore> SimulatedJob::Surroundings::serve(const wire::Endpoint& /*endpoint*/,
                                                               const wire::Secret& /*secret*/,
                                                               const Note& /*complain*/) {
  const wire::Endpoint endpoint = wire::Endpoint::parse(text("sim:", ++job_.next_port_), "the simulation");
  const auto store = std::make_shared<Store>(Store{.server = &launcher_});
  job_.stores_[endpoint.text()] = store;
  return std::make_unique<OpenStore>(endpoint, [store] { store->is_open = false; });
}

std::unique_ptr<JobElection> SimulatedJob::Surroundings::election(const wire::Address& /*store*/,
                                                                  const Note& /*trouble*/) {
  auto election = std::make_unique<Election>(job_, launcher_);
  launcher_.election = election.get();
  return election;
}

}  // namespace trireme::cli
