#include "trireme/comm/internal/notice_board.h"

#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/internal/watcher.h"

namespace trireme::comm {
namespace {

// Rounds in which this rank publishes its operations after a stall was reported.
constexpr int kPublishingRounds = 4;
// Timeout of one reply of the store, or of a new connection. The thread may take as long to end.
constexpr double kStorePatience_s = 1;
// A store that has failed for this long gets no last request at shutdown.
constexpr double kLost_s = 0.5;
// Period of rounds while a caller waits for news.
constexpr double kHurry_s = 0.02;
// Period of looking at other ranks, as a share of the time for which an operation has stalled.
constexpr double kBlinkShare = 0.05;
constexpr double kLongestBlink_s = 1;
// A rank that was not observed for this long may have made progress meanwhile.
constexpr double kForgetAfter_s = 4;

std::string operations_key(const std::string& group, int world_rank) {
  return text("operations/", group, "/", world_rank);
}

std::string failure_key(int world_rank, std::uint64_t number) {
  return text("failure/", world_rank, "/", number);
}

std::string beat_key(int world_rank) { return text("beat/", world_rank); }

}  // namespace

void GroupRegistry::add(const std::shared_ptr<Group::State>& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

GroupRegistry::Groups GroupRegistry::groups() {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& each) { return each.expired(); });
  Groups result;
  for (const auto& each : groups_) {
    if (auto group = each.lock()) result.push_back(std::move(group));
  }
  return result;
}

NoticeBoard::NoticeBoard(NoticeBoardOptions options, GroupRegistry& registry)
    : options_(std::move(options)),
      registry_(registry),
      signs_(options_.status, options_.cpu_s),
      observations_(static_cast<std::size_t>(options_.world_size)),
      failures_(static_cast<std::size_t>(options_.world_size)),
      num_heard_(static_cast<std::size_t>(options_.world_size)) {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "trireme-notices");
}

NoticeBoard::~NoticeBoard() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = leaves_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// ---- interface for other threads ----

void NoticeBoard::publish_failure(const std::string& group, const std::string& cause) {
  saw_failure_ = true;
  {
    const std::lock_guard lock(mutex_);
    outbox_.push_back({group, cause});
    hurry_ = true;
  }
  changed_.notify_all();
}

void NoticeBoard::keep_last_words(const std::string& group, const std::vector<Operation>& operations) {
  const std::lock_guard lock(mutex_);
  last_words_[group] = encode_operations(operations);
}

void NoticeBoard::announce_leave() {
  const std::lock_guard lock(mutex_);
  leaves_ = hurry_ = true;
  changed_.notify_all();
}

PeerObservation NoticeBoard::observation(int world_rank) const {
  const std::lock_guard lock(mutex_);
  return observations_[static_cast<std::size_t>(world_rank)];
}

std::vector<PeerObservation> NoticeBoard::observations() const {
  const std::lock_guard lock(mutex_);
  return observations_;
}

Published NoticeBoard::published(const std::string& group) const {
  const std::lock_guard lock(mutex_);
  const auto found = published_.find(group);
  return found == published_.end() ? Published{} : found->second;
}

std::string NoticeBoard::failure_told_by(int world_rank) const {
  const std::lock_guard lock(mutex_);
  return failures_[static_cast<std::size_t>(world_rank)];
}

std::string NoticeBoard::first_failure() const {
  const std::lock_guard lock(mutex_);
  return first_failure_;
}

std::optional<double> NoticeBoard::store_lost_s() const {
  const std::lock_guard lock(mutex_);
  return store_lost_s_;
}

bool NoticeBoard::has_lost_store(double for_s) const {
  const std::lock_guard lock(mutex_);
  return store_failed_s_ && now_s() - *store_failed_s_ >= for_s;
}

bool NoticeBoard::has_asked_since(double since_s) const {
  const std::lock_guard lock(mutex_);
  return asked_s_ >= since_s;
}

std::uint64_t NoticeBoard::rounds() const {
  const std::lock_guard lock(mutex_);
  return rounds_;
}

void NoticeBoard::hurry() {
  std::unique_lock lock(mutex_);
  hurry_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, Seconds(kHurry_s));
}

// ---- thread ----

void NoticeBoard::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto must_go = [&] { return stop_ || !outbox_.empty(); };
    changed_.wait_for(lock, Seconds(options_.period_s), [&] { return must_go() || hurry_; });
    // A caller of hurry() repeats its request.
    if (hurry_) changed_.wait_for(lock, Seconds(kHurry_s), must_go);
    const bool last = stop_;
    // No rank can receive the remaining notices.
    if (last && store_failed_s_ && now_s() - *store_failed_s_ >= kLost_s) return;
    hurried_ = hurry_;
    hurry_ = false;
    lock.unlock();
    double asked_s = now_s();
    try {
      if (!store_) {
        lost_store();  // lost until a round succeeds: connecting may outlast a caller's wait
        store_ = options_.connect(kStorePatience_s);
      }
      round();
    } catch (const std::exception&) {
      // The state of processes on this host is known without the store.
      store_.reset();
      lost_store();
      const std::lock_guard failed(mutex_);
      if (!store_failed_s_) store_failed_s_ = now_s();
      asked_s = now_s();  // notices published before now cannot be read
    }
    lock.lock();
    ++rounds_;
    asked_s_ = asked_s;
    changed_.notify_all();
    if (last) return;
  }
}

void NoticeBoard::lost_store() {
  const std::lock_guard lock(mutex_);
  if (!store_lost_s_) store_lost_s_ = now_s();
}

void NoticeBoard::round() {
  const Groups watched = registry_.groups();
  tell();
  listen(watched);
  const Groups standing = stalled(watched);
  publish_operations(watched, !standing.empty());
  tell_last_words();
  beat(watched);
  if (looks_now(standing)) look_around(standing);
  const std::lock_guard lock(mutex_);
  store_lost_s_.reset();
  store_failed_s_.reset();
}

// ---- failures ----

void NoticeBoard::tell() {
  while (true) {
    Told told;
    {
      const std::lock_guard lock(mutex_);
      if (outbox_.empty()) return;
      told = outbox_.front();
    }
    // In this order: a connection lost between the two calls repeats the first and leaves no gap in the
    // numbers.
    store_->set(failure_key(options_.rank, num_told_), told.group + "\n" + told.cause);
    store_->add("failures", 1);
    ++num_told_;
    const std::lock_guard lock(mutex_);
    outbox_.erase(outbox_.begin());
  }
}

void NoticeBoard::listen(const Groups& watched) {
  const auto failures = store_->add("failures", 0);
  if (failures == failures_seen_) return;
  for (std::size_t rank = 0; rank < num_heard_.size(); ++rank) {
    for (std::string key; store_->check({key = failure_key(static_cast<int>(rank), num_heard_[rank])});
         ++num_heard_[rank]) {
      saw_failure_ = true;
      const std::string message = store_->get_to_str(key);
      const auto end_of_group = message.find('\n');
      const std::string group = message.substr(0, end_of_group);
      const std::string cause = message.substr(end_of_group + 1);
      remember_failure(rank, cause);
      for (const auto& each : watched) {
        if (group == Watcher::kAllGroups || each->parts.name == group) each->fail_told(cause);
      }
    }
  }
  failures_seen_ = failures;
}

void NoticeBoard::remember_failure(std::size_t world_rank, const std::string& cause) {
  if (static_cast<int>(world_rank) == options_.rank) return;
  const std::lock_guard lock(mutex_);
  if (first_failure_.empty()) first_failure_ = cause;
  if (failures_[world_rank].empty()) failures_[world_rank] = cause;
}

// ---- publishing this rank's state ----

NoticeBoard::Groups NoticeBoard::stalled(const Groups& watched) const {
  Groups result;
  for (const auto& group : watched) {
    if (group->failed()) continue;
    const auto pending = group->pending();
    if (!pending.empty() && now_s() - pending.front().issued_s >= options_.stall_s) result.push_back(group);
  }
  return result;
}

void NoticeBoard::publish_operations(const Groups& watched, bool found_stall) {
  const auto stalls = store_->add("stalls", found_stall ? 1 : 0);
  if (stalls != stalls_seen_) publishing_rounds_ = kPublishingRounds;
  stalls_seen_ = stalls;
  if (publishing_rounds_ == 0) return;
  --publishing_rounds_;
  for (const auto& group : watched) publish(group->parts.name, encode_operations(group->recent()));
}

void NoticeBoard::publish(const std::string& group, const std::string& operations) {
  const auto before = published_by_us_.find(group);
  if (before != published_by_us_.end() && before->second == operations) return;
  store_->set(operations_key(group, options_.rank), operations);
  published_by_us_[group] = operations;
  ++num_publications_;  // the next heartbeat contains it
}

void NoticeBoard::tell_last_words() {
  std::map<std::string, std::string> words;
  {
    const std::lock_guard lock(mutex_);
    words.swap(last_words_);
  }
  for (const auto& [group, operations] : words) publish(group, operations);
}

void NoticeBoard::beat(const Groups& watched) {
  Heartbeat beat;
  beat.number = ++num_beats_;
  beat.publications = num_publications_;
  const telemetry::Status status = signs_.status();
  beat.operation = status.operation;
  beat.action = status.action;
  beat.own_work = status.own_work;
  for (const auto& group : watched) {
    for (const Operation& operation : group->waits()) {
      beat.waits = true;
      beat.operation = text(name_of(operation.kind), " #", operation.number, " of group ", group->parts.name);
      const std::vector<int> ranks = missing(group->parts, operation);
      beat.waits_for.insert(beat.waits_for.end(), ranks.begin(), ranks.end());
      if (now_s() - operation.issued_s >= options_.stall_s) group->show_missing(operation, ranks);
    }
  }
  beat.progress_counter = signs_.look(status, beat.waits);
  {
    const std::lock_guard lock(mutex_);
    beat.leaves = leaves_;
  }
  store_->set(beat_key(options_.rank), encode(beat));
}

/// World ranks that have not issued the operation, as far as is known here.
std::vector<int> NoticeBoard::missing(const GroupParts& parts, const Operation& operation) const {
  return missing_ranks(operation, parts.rank, parts.world_ranks, published(parts.name));
}

// ---- reading other ranks' state ----

/// The interval grows with the duration of the stall: many ranks may wait for one busy rank.
bool NoticeBoard::looks_now(const Groups& standing) {
  const double now = now_s();
  if (standing.empty() || (now < next_look_s_ && !hurried_)) return false;
  double since_s = now;
  for (const auto& group : standing) {
    for (const Operation& operation : group->pending()) since_s = std::min(since_s, operation.issued_s);
  }
  next_look_s_ = now + std::min(kLongestBlink_s, kBlinkShare * (now - since_s));
  return true;
}

/// Looks at the members of stalled groups, at the ranks that these wait for, and so on.
void NoticeBoard::look_around(const Groups& standing) {
  std::set<int> seen, next;
  for (const auto& group : standing) {
    const GroupParts& parts = group->parts;
    next.insert(parts.world_ranks.begin(), parts.world_ranks.end());
  }
  seen.insert(options_.rank);
  next.erase(options_.rank);
  while (!next.empty()) {
    look_at(next);
    seen.insert(next.begin(), next.end());
    std::set<int> beyond;
    for (const int rank : next) {
      for (const int other : observation(rank).beat.waits_for) {
        const bool known = other >= 0 && other < options_.world_size;
        if (known && !seen.contains(other)) beyond.insert(other);
      }
    }
    next = std::move(beyond);
  }
  for (const auto& group : standing) {
    for (int member = 0; member < group->size(); ++member) {
      if (member != group->parts.rank) read_operations(group->parts, member);
    }
  }
}

void NoticeBoard::look_at(const std::set<int>& world_ranks) {
  std::vector<int> ranks;
  std::vector<std::string> keys;
  for (const int rank : world_ranks) {
    std::string key = beat_key(rank);
    if (observation(rank).beat.number == 0 && !store_->check({key})) {
      note(rank, std::nullopt);
    } else {
      ranks.push_back(rank);
      keys.push_back(std::move(key));
    }
  }
  if (keys.empty()) return;
  const auto values = store_->multiGet(keys);
  // An invalid heartbeat counts as none.
  for (std::size_t i = 0; i < ranks.size(); ++i)
    note(ranks[i], decode_heartbeat({values[i].begin(), values[i].end()}));
}

void NoticeBoard::note(int world_rank, std::optional<Heartbeat> beat) {
  const double now = now_s();
  const std::lock_guard lock(mutex_);
  PeerObservation& observation = observations_[static_cast<std::size_t>(world_rank)];
  const bool forgotten = now - observation.looked_s > kForgetAfter_s;
  if (forgotten || (beat && beat->number != observation.beat.number)) observation.heard_s = now;
  const bool made_progress = beat && beat->progress_counter != observation.beat.progress_counter;
  if (forgotten || made_progress) observation.progress_s = now;
  observation.made_progress = !forgotten && (observation.made_progress || made_progress);
  observation.looked_s = now;
  if (beat) observation.beat = std::move(*beat);
}

void NoticeBoard::read_operations(const GroupParts& parts, int member) {
  const int world_rank = parts.world_ranks[static_cast<std::size_t>(member)];
  const std::uint64_t newest = observation(world_rank).beat.publications;
  std::uint64_t& read = publications_read_[{parts.name, world_rank}];
  if (newest == read) return;
  const std::string key = operations_key(parts.name, world_rank);
  if (store_->check({key})) {
    auto operations = decode_operations(store_->get_to_str(key), static_cast<int>(parts.world_ranks.size()));
    if (!operations) return;  // invalid: the next publication is read
    const std::lock_guard lock(mutex_);
    published_[parts.name][member] = std::move(*operations);
  }
  read = newest;
}

}  // namespace trireme::comm
