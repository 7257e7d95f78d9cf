#include "cli/launch/elastic_job.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/etcd/store_address.h"
#include "trireme/wire/socket.h"

namespace trireme::cli {
namespace {

constexpr double kSilentStore_s = 15;
// A lease, an election, and the time to find a store.
constexpr double kNoLeader_s = 60;
constexpr double kTryStore_s = 3, kTryFirst_s = 1;
constexpr double kWriteAgain_s = 60, kTryToWriteAgain_s = 1;
constexpr double kLookForLeader_s = 0.05;

wire::Endpoint parse_leader(const wire::Address& address) {
  return wire::Endpoint::parse(address, "the leader of the job in etcd");
}

/// Of the job with that start id, as finish() has written it.
std::optional<wire::JobEnd> end_of(const std::string& written, const std::string& start_id) {
  if (!written.starts_with(start_id + ' ')) return std::nullopt;
  return wire::parse_job_state(written.substr(start_id.size() + 1)).end;
}

std::string own_address(const ElasticJobOptions& options) {
  if (!options.address.empty()) return options.address;
  for (const wire::Endpoint& member : etcd::StoreAddress::parse(options.rendezvous).members) {
    const std::string address = wire::local_address_towards(member);
    if (!address.empty()) return address;
  }
  throw CommError(text("this host has no way to ", options.rendezvous,
                       ": check the address and the network, or give --local-addr"));
}

}  // namespace

ElasticJob::ElasticJob(ElasticJobOptions options) : options_(std::move(options)) {
  if (options_.rendezvous.empty()) {
    const wire::StoreClientOptions store = store_at(options_.store);
    const std::unique_ptr<JobStore> client = reach_first(store);
    const int node =
        options_.is_first ? 0 : static_cast<int>(client->add(wire::kElasticHostsKey, 1, store.timeout_s));
    start_id_ = client->compare_set(wire::kJobStartKey, "", options_.start_id, store.timeout_s);
    host_.emplace(options_.surroundings, store, node, options_.capacity, kSilentStore_s);
    if (options_.is_first) make_leader(options_.store);
    return;
  }
  folder_ = std::make_unique<TemporaryFolder>();
  leadership_ = options_.surroundings.election(options_.rendezvous, options_.note);
  const int node = claim_number();
  serve_own_store();
  join_leader(node);
  write_store_file();
}

/// The launcher of the first host may start later.
std::unique_ptr<JobStore> ElasticJob::reach_first(const wire::StoreClientOptions& store) const {
  JobSurroundings& surroundings = options_.surroundings;
  const double end_s = surroundings.now_s() + store.timeout_s;
  for (bool has_said = false;; surroundings.sleep(kLookForLeader_s)) {
    // A slow launcher gets the whole time once it listens.
    if (surroundings.listens(store.endpoint, kTryFirst_s)) return surroundings.connect(store);
    if (surroundings.now_s() > end_s)
      throw CommError(text("no launcher serves the store of the job at ", store.endpoint.text(), " within ",
                           human_duration(store.timeout_s),
                           "; start `trireme launch --elastic` on the first host, and check --master-addr "
                           "and --master-port"));
    give_up_if_told();
    if (!std::exchange(has_said, true))
      options_.say(text("elastic: no launcher serves the store of the job at ", store.endpoint.text(),
                        " yet; trying for ", human_duration(store.timeout_s)));
  }
}

/// etcd may start at the same time.
int ElasticJob::claim_number() {
  const double end_s = options_.surroundings.now_s() + kNoLeader_s;
  for (bool has_said = false;; options_.surroundings.sleep(kLookForLeader_s)) {
    try {
      check_secret();
      const int node = leadership_->claim_number();
      start_id_ = leadership_->agree("start", options_.start_id);
      return node;
    } catch (const CommError& error) {
      if (options_.surroundings.now_s() > end_s) throw;
      give_up_if_told();
      if (!std::exchange(has_said, true))
        options_.say(text("elastic: ", error.what(), "; trying for ", human_duration(kNoLeader_s)));
    }
  }
}

/// Before this launcher can be elected. The key is derived from the secret, and does not reveal it.
void ElasticJob::check_secret() const {
  const std::string own =
      options_.secret.empty() ? "none" : options_.secret.of_role("launcher.etcd-prefix").reveal();
  require(leadership_->agree("secret", own) == own, "a job with another secret uses ", options_.rendezvous,
          ": give this job a prefix of its own, or give all launchers of the job the same secret "
          "(TRIREME_SECRET, TRIREME_SECRET_FILE, --secret-file)");
}

void ElasticJob::give_up_if_told() const {
  const int signal = options_.stop_signal();
  if (signal == 0) return;
  throw ToldToStop(
      signal,
      options_.rendezvous.empty()
          ? text("told to stop before a launcher served the store of the job at ", options_.store.text())
          : text("told to stop before a leader of the job was found in ", options_.rendezvous));
}

wire::StoreClientOptions ElasticJob::store_at(const wire::Endpoint& endpoint) const {
  return {.endpoint = endpoint, .secret = options_.secret};
}

std::string ElasticJob::store_file() const { return folder_ ? folder_->path() + "/store" : ""; }

/// A new store for each candidacy: that of an earlier term has worlds of the past.
void ElasticJob::serve_own_store() {
  leadership_->stand_down();  // with a store that no longer exists
  own_store_.reset();
  const wire::Endpoint endpoint{own_address(options_), options_.port};
  try {
    own_store_ = options_.surroundings.serve(endpoint, options_.secret, options_.note);
  } catch (const CommError& error) {
    throw CommError(text("cannot serve a store at ", endpoint.text(), ": ", error.what()));
  }
  leadership_->campaign(own_store_->endpoint().text());
}

/// A lost leader has a successor after its lease.
void ElasticJob::join_leader(int node) {
  JobSurroundings& surroundings = options_.surroundings;
  const double end_s = surroundings.now_s() + kNoLeader_s;
  for (std::string trouble = "there is none"; !host_; surroundings.sleep(kLookForLeader_s)) {
    if (surroundings.now_s() > end_s)
      throw CommError(text("no launcher that leads the job in ", options_.rendezvous, " was found within ",
                           human_duration(kNoLeader_s), ": ", trouble, "; check that etcd answers"));
    give_up_if_told();
    const wire::Address address = leadership_->leader();
    if (address.empty()) continue;
    try {
      wire::StoreClientOptions store = store_at(parse_leader(address));
      store.timeout_s = kTryStore_s;
      host_.emplace(surroundings, store, node, options_.capacity, kNoLeader_s);
    } catch (const CommError& error) {
      trouble = error.what();
    }
  }
}

void ElasticJob::make_leader(const wire::Endpoint& store) {
  ElasticLeaderOptions options{.store = store_at(store),
                               .node = host_->node(),
                               .limits = options_.limits,
                               .say = options_.say,
                               .surroundings = options_.surroundings};
  if (leadership_) {
    options.leads = [this] { return leadership_->term() != 0 && leadership_->term() == term_; };
    options.save = [this](const JobRecord& record) {
      leadership_->save(to_text(record));
      saved_ = to_text(record);
    };
  }
  leader_.emplace(std::move(options));
}

void ElasticJob::begin_to_lead(std::int64_t term) {
  const std::optional<std::string> saved = leadership_->load();
  const bool has_led = leader_.has_value();
  if (!saved && is_over_without_record()) return;
  if (has_led && saved != saved_) return start_over();  // another launcher has led in between
  if (!has_led) {
    saved_ = saved;
    take_over(saved ? parse_job_record(*saved) : JobRecord());
  }
  term_ = term;
}

/// Without a record the job has not begun, has ended, or etcd has lost its data.
bool ElasticJob::is_over_without_record() {
  const auto end = end_of(leadership_->last_end().value_or(""), start_id_);
  if (end) host_->learn_end(*end);
  has_lost_record_ = !end && host_->world().generation >= 0;
  return end || has_lost_record_;
}

void ElasticJob::take_over(const JobRecord& record) {
  use(own_store_->endpoint());
  make_leader(own_store_->endpoint());
  if (record.world.generation < 0) return;
  try {
    leader_->take_over(record);
  } catch (const CommError&) {
    leader_.reset();  // the next exchange() does all of it again
    throw;
  }
  options_.say(text("elastic: this host, ", host_->node(), ", leads the job now"));
}

/// Starts over as a host that has never led.
void ElasticJob::start_over() {
  leader_.reset();
  serve_own_store();
}

void ElasticJob::use(const wire::Endpoint& store) {
  if (store.text() == host_->store().text()) return;
  host_->move_to(store_at(store));
  write_store_file();
}

/// The file is replaced atomically, so readers find the old address or the new one. It is rewritten at
/// intervals, as programs that clean temporary folders remove old files.
void ElasticJob::write_store_file() {
  write_again_s_ = options_.surroundings.now_s() + kTryToWriteAgain_s;
  const std::filesystem::path next = store_file() + ".next";
  std::error_code error;
  std::filesystem::create_directories(folder_->path(), error);
  std::ofstream file(next);
  file << host_->store().text() << '\n';
  file.close();
  if (file) std::filesystem::rename(next, store_file(), error);
  if (!file || error)
    throw CommError(text("cannot write ", store_file(), ", where ranks look for the store of the job: ",
                         error ? error.message() : "the disk may be full",
                         "; free space there, or set TMPDIR"));
  write_again_s_ = options_.surroundings.now_s() + kWriteAgain_s;
}

/// Another launcher may lead now, or this one may.
void ElasticJob::follow_leader() {
  if (!own_store_) serve_own_store();  // failed earlier
  if (const std::int64_t term = leadership_->term(); term != 0) {
    if (term != term_) try_to_lead([&] { begin_to_lead(term); });
    return;
  }
  if (!leader_) cannot_lead_ = false;  // it is no longer elected
  const wire::Address address = leadership_->leader();
  const bool is_own = address == own_store_->endpoint().text();
  if (address.empty() || is_own) return;
  const bool has_led = leader_.has_value();
  leader_.reset();
  use(parse_leader(address));
  if (!has_led) return;
  options_.say("elastic: another host leads the job now");
  start_over();
}

bool ElasticJob::exchange(std::vector<wire::MemberReport> members) {
  if (!leadership_) {
    const bool answers = host_->exchange(std::move(members));
    if (leader_) leader_->look();
    return answers;
  }
  if (!host_->job().end) or_later([this] { follow_leader(); });
  if (options_.surroundings.now_s() > write_again_s_) or_later([this] { write_store_file(); });
  const bool answers = host_->exchange(std::move(members));
  if (leader_) or_later([this] { try_to_lead([this] { leader_->look(); }); });
  if (!leader_ && host_->job().end) leadership_->stand_down();
  return answers && !has_lost_record_ && !waits_in_vain();
}

/// The next exchange() tries again after an error of etcd or a store.
template <class Call>
void ElasticJob::or_later(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    if (std::exchange(trouble_, error.what()) != error.what()) options_.note("elastic: " + trouble_);
  }
}

template <class Call>
void ElasticJob::try_to_lead(const Call& call) {
  cannot_lead_ = true;  // unless call() succeeds
  call();
  cannot_lead_ = false;
}

/// Whether this launcher waits without prospect of a next world. Either its ranks have lost their world, and
/// it has led but cannot form the next one. Or it was elected and cannot lead.
bool ElasticJob::waits_in_vain() {
  const bool is_elected = leadership_->term() != 0;
  const bool waits = leader_ ? host_->is_lost() && (!is_elected || cannot_lead_) : is_elected && cannot_lead_;
  if (!waits) waits_since_s_ = 0;
  if (waits && waits_since_s_ == 0) waits_since_s_ = options_.surroundings.now_s();
  return waits && options_.surroundings.now_s() - waits_since_s_ > kNoLeader_s;
}

std::string ElasticJob::why_over() const {
  if (has_lost_record_)
    return text("etcd has lost its data, or the job has ended more than an hour ago: ", options_.rendezvous,
                " has no record of the job any more");
  if (cannot_lead_)
    return text("this launcher could not lead it for ", human_duration(kNoLeader_s), ": ", trouble_);
  const std::string silent = text("the store of the job, ", host_->store().text(), ", does not answer");
  return leadership_ ? text(silent, ", and no other launcher leads in ", options_.rendezvous) : silent;
}

bool ElasticJob::can_leave() const { return !leader_ || leadership_; }

void ElasticJob::hand_over() {
  if (leadership_) leadership_->stand_down();
}

void ElasticJob::stop(int signal) {
  if (leader_) leader_->stop(signal);
}

bool ElasticJob::hears_others() { return leader_ && leader_->hears_others(); }

void ElasticJob::finish(int exit_code) {
  if (!leadership_ || !leader_) return;
  const wire::JobEnd end = host_->job().end.value_or(
      wire::JobEnd{.exit_code = exit_code, .reason = "its leading launcher has ended"});
  try {
    if (leadership_->term() == 0) throw CommError("this launcher does not lead any more");
    leadership_->end(text(start_id_, ' ', to_text(wire::JobState{.end = end})));
  } catch (const Error& error) {
    options_.note(text("elastic: the keys of the job stay in ", options_.rendezvous, ": ", error.what(),
                       ". Give the next job another prefix"));
  }
}

}  // namespace trireme::cli
