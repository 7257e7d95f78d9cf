#include "trireme/comm/internal/watcher.h"

#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

// How long an operation may wait for a rank that is gone: its last bytes may still be on their way.
constexpr double kGraceS = 0.5;
// Rounds in which this rank publishes its operations after somebody was found waiting.
constexpr int kPublishingRounds = 4;
// How long one answer of the store is waited for, or a new connection: as long as the thread may take to end.
constexpr double kStorePatienceS = 1;

std::string operations_key(const std::string& group, int world_rank) {
  return text("operations/", group, "/", world_rank);
}

std::string failure_key(int world_rank, std::uint64_t number) {
  return text("failure/", world_rank, "/", number);
}

std::string last_of(const std::vector<Operation>& operations) {
  const Operation& last = operations.back();
  return text(name_of(last.kind), " #", last.number,
              last.state == OperationRecord::State::kIssued ? ", running" : ", over");
}

}  // namespace

Watcher::Watcher(WatcherOptions options)
    : options_(std::move(options)),
      left_(options_.arrivals.size()),
      beats_(options_.arrivals.size()),
      beat_changed_s_(options_.arrivals.size()),
      heard_(options_.arrivals.size()) {
  const Arrival& me = options_.arrivals[static_cast<std::size_t>(options_.rank)];
  for (const auto& peer : options_.arrivals) {
    const bool watchable = peer.host_id == me.host_id && peer.pid != me.pid;
    processes_.push_back(watchable ? std::make_unique<wire::PeerProcess>(peer.pid) : nullptr);
  }
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "trireme-watch");
}

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watcher::watch(const std::shared_ptr<Group::State>& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

void Watcher::publish_failure(const std::string& group, const std::string& cause) {
  saw_failure_ = true;
  {
    const std::lock_guard lock(mutex_);
    outbox_.push_back({group, cause});
    hurry_ = true;
  }
  changed_.notify_all();
}

void Watcher::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait_for(lock, Seconds(hurry_ ? 0.02 : options_.period_s),
                      [&] { return stop_ || !outbox_.empty(); });
    const bool last = stop_;
    hurry_ = false;
    lock.unlock();
    try {
      if (!store_) {
        lost_store();  // until a round went well: connecting may take longer than explain() waits
        store_ = options_.connect(kStorePatienceS);
      }
      round();
    } catch (const std::exception&) {
      // Without the store there is still what this host's processes tell.
      store_.reset();
      lost_store();
    }
    blame_the_gone(groups());
    lock.lock();
    ++rounds_;
    changed_.notify_all();
    if (last) return;
  }
}

void Watcher::lost_store() {
  const std::lock_guard lock(mutex_);
  if (store_lost_s_ == 0) store_lost_s_ = now_s();
}

void Watcher::round() {
  const Groups watched = groups();
  tell();
  listen(watched);
  store_->set(text("beat/", options_.rank), std::to_string(++beat_));
  publish_operations(watched);
  read_operations(watched);
  const std::lock_guard lock(mutex_);
  store_lost_s_ = 0;
}

Watcher::Groups Watcher::groups() {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& each) { return each.expired(); });
  Groups result;
  for (const auto& each : groups_) {
    if (auto group = each.lock()) result.push_back(std::move(group));
  }
  return result;
}

void Watcher::tell() {
  while (true) {
    Told told;
    {
      const std::lock_guard lock(mutex_);
      if (outbox_.empty()) return;
      told = outbox_.front();
    }
    // In this order, so that a connection lost in between repeats it and leaves no hole.
    store_->set(failure_key(options_.rank, told_), told.group + "\n" + told.cause);
    store_->add("failures", 1);
    ++told_;
    const std::lock_guard lock(mutex_);
    outbox_.erase(outbox_.begin());
  }
}

void Watcher::listen(const Groups& watched) {
  const auto failures = store_->add("failures", 0);
  if (failures == failures_seen_) return;
  for (std::size_t rank = 0; rank < heard_.size(); ++rank) {
    for (std::string key; store_->check({key = failure_key(static_cast<int>(rank), heard_[rank])});
         ++heard_[rank]) {
      saw_failure_ = true;
      const std::string message = store_->get_to_str(key);
      const auto end_of_group = message.find('\n');
      const std::string group = message.substr(0, end_of_group);
      for (const auto& each : watched) {
        if (group == kAllGroups || each->parts.name == group)
          each->fail_told(message.substr(end_of_group + 1));
      }
    }
  }
  failures_seen_ = failures;
}

void Watcher::publish_operations(const Groups& watched) {
  bool found_stall = false;
  for (const auto& group : watched) {
    const auto pending = group->pending();
    if (pending.empty() || group->failed() || now_s() - pending.front().issued_s < options_.stall_s) continue;
    auto& number = stalled_number_[group->parts.name];
    found_stall = found_stall || number != pending.front().number;
    number = pending.front().number;
  }
  const auto stalls = store_->add("stalls", found_stall ? 1 : 0);
  if (stalls != stalls_seen_) publishing_rounds_ = kPublishingRounds;
  stalls_seen_ = stalls;
  if (publishing_rounds_ == 0) return;
  --publishing_rounds_;
  for (const auto& group : watched) {
    store_->set(operations_key(group->parts.name, options_.rank), encode_operations(group->recent()));
  }
}

void Watcher::read_operations(const Groups& watched) {
  for (const auto& group : watched) {
    const auto pending = group->pending();
    if (pending.empty() || group->failed() || now_s() - pending.front().issued_s < options_.stall_s) continue;
    const GroupParts& parts = group->parts;
    for (int member = 0; member < group->size(); ++member) {
      if (member != parts.rank) read_member(parts, member);
    }
    for (const auto& operation : pending) {
      const std::string disagreement =
          find_disagreement(operation, parts.rank, parts.world_ranks, published(parts.name));
      if (disagreement.empty()) continue;
      group->fail(text("rank ", options_.rank, ", group '", parts.name, "', ", name_of(operation.kind), " #",
                       operation.number, ": ", disagreement));
      break;
    }
  }
}

void Watcher::read_member(const GroupParts& parts, int member) {
  const int world_rank = parts.world_ranks[static_cast<std::size_t>(member)];
  const auto index = static_cast<std::size_t>(world_rank);
  const auto read = [&](const std::string& key) {
    return store_->check({key}) ? store_->get_to_str(key) : std::string();
  };
  const std::string beat = read(text("beat/", world_rank));
  const bool left = store_->check({text("left/", world_rank)});
  const std::string operations = operations_key(parts.name, world_rank);
  const bool has_published = store_->check({operations});
  auto decoded = decode_operations(read(operations));
  const std::lock_guard lock(mutex_);
  left_[index] = left;
  if (!beat_changed_s_[index] || beats_[index] != beat) beat_changed_s_[index] = now_s();
  beats_[index] = beat;
  if (has_published) published_[parts.name][member] = std::move(decoded);
}

Published Watcher::published(const std::string& group) const {
  const std::lock_guard lock(mutex_);
  const auto found = published_.find(group);
  return found == published_.end() ? Published{} : found->second;
}

void Watcher::blame_the_gone(const Groups& watched) {
  for (const auto& group : watched) {
    if (group->failed()) continue;
    for (const auto& operation : group->pending()) {
      if (now_s() - operation.issued_s < kGraceS) break;
      const std::string gone = who_is_gone(*group, operation);
      if (gone.empty()) continue;
      group->fail(text("rank ", options_.rank, ", group '", group->parts.name, "', ",
                       operation.record().describe(), ": ", gone));
      break;
    }
  }
}

std::string Watcher::explain(const Group::State& group, const Operation& operation, double patience_s) {
  const auto deadline = Deadline::after_s(patience_s);
  std::string gone;
  std::unique_lock lock(mutex_);
  const auto first_round = rounds_;
  while (!group.failed() && !(rounds_ >= first_round + 3 && deadline.expired())) {
    lock.unlock();
    gone = who_is_gone(group, operation);
    lock.lock();
    // The store may be out of reach: the deadline ends this, with a little time to see that it is.
    if (!gone.empty() || deadline.expired()) break;
    hurry_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, Seconds(0.02));
  }
  lock.unlock();
  return gone.empty() ? who_is_behind(group, operation) : gone;
}

std::string Watcher::who_is_gone(const Group::State& group, const Operation& operation) const {
  std::vector<std::string> gone;
  for (const int member : ranks_needed(operation, group.parts.rank, group.size())) {
    const int world_rank = group.parts.world_ranks[static_cast<std::size_t>(member)];
    if (is_dead(world_rank)) {
      gone.push_back(text(name_of_rank(world_rank), " is dead"));
    } else if (has_left(world_rank)) {
      gone.push_back(text(name_of_rank(world_rank), " has left the world"));
    }
  }
  return join(gone, "; ");
}

std::string Watcher::who_is_behind(const Group::State& group, const Operation& operation) const {
  std::vector<std::string> behind;
  const Published known = published(group.parts.name);
  for (const int member : ranks_needed(operation, group.parts.rank, group.size())) {
    const int world_rank = group.parts.world_ranks[static_cast<std::size_t>(member)];
    const auto index = static_cast<std::size_t>(world_rank);
    if (processes_[index] && processes_[index]->state() == "stopped") {
      behind.push_back(text(name_of_rank(world_rank), " is stopped (SIGSTOP, a debugger?)"));
      continue;
    }
    const auto found = known.find(member);
    if (found != known.end() && !counterpart(operation, group.parts.rank, found->second)) {
      const auto& theirs = found->second;
      behind.push_back(text(name_of_rank(world_rank), " has not issued it; its last operation: ",
                            theirs.empty() ? "none" : last_of(theirs)));
    }
    const std::lock_guard lock(mutex_);
    const double silent_s = beat_changed_s_[index] ? now_s() - *beat_changed_s_[index] : 0;
    if (silent_s > 8 * options_.period_s) {
      behind.push_back(
          text(name_of_rank(world_rank), " was last heard of ", human_duration(silent_s), " ago"));
    }
  }
  const std::lock_guard lock(mutex_);
  if (behind.empty() && store_lost_s_ > 0) {
    behind.push_back(
        text("the store that rank 0 serves has not answered for ", human_duration(now_s() - store_lost_s_)));
  }
  return join(behind, "; ");
}

std::string Watcher::name_of_rank(int world_rank) const {
  const Arrival& arrival = options_.arrivals[static_cast<std::size_t>(world_rank)];
  return text("rank ", world_rank, " (pid ", arrival.pid, ")");
}

bool Watcher::has_left(int world_rank) const {
  const std::lock_guard lock(mutex_);
  return left_[static_cast<std::size_t>(world_rank)];
}

bool Watcher::is_dead(int world_rank) const {
  const auto& process = processes_[static_cast<std::size_t>(world_rank)];
  return process && process->dead();
}

}  // namespace trireme::comm
