#include "trireme/comm/internal/watcher.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

// How long an operation may wait for a dead rank, whose last bytes may still arrive.
constexpr double kGrace_s = 0.5;
// How long to look for the last heartbeat of a dead rank: it may report a normal exit.
constexpr double kLastBeat_s = 1.5;
// A store that has not answered for this long will provide no more news about a failure.
constexpr double kStoreComesBack_s = 0.5;
// Progress of a rank is visible only over several heartbeats, however short the deadline.
constexpr double kBeatsToSee = 4;
constexpr double kBeatsToBeSilent = 8;
// Warnings about the same slow rank come after the deadline, then after twice the time, and so on.
constexpr double kLongerEachTime = 2;

std::string last_of(const std::vector<Operation>& operations) {
  const Operation& last = operations.back();
  return text(name_of(last.kind), " #", last.number,
              last.state == OperationRecord::State::kIssued ? ", running" : ", over");
}

std::string doing(const Heartbeat& beat) {
  if (!beat.own_work.empty()) return "it is busy with: " + beat.own_work;
  return beat.action.empty() ? "it does not say what it does" : "it is in: " + beat.action;
}

/// The CPU time of this rank: of its process, or of this thread if several ranks share a process.
std::function<double()> cpu_clock_of(const WatcherOptions& options) {
  const Arrival& me = options.arrivals[static_cast<std::size_t>(options.rank)];
  const auto num_ranks_here = std::ranges::count_if(options.arrivals, [&](const Arrival& each) {
    return each.host_id == me.host_id && each.pid == me.pid;
  });
  clockid_t clock{};
  if (num_ranks_here == 1 || ::pthread_getcpuclockid(::pthread_self(), &clock) != 0)
    return cpu_s_of_other_threads;
  return [clock] { return cpu_s_of(clock); };
}

}  // namespace

Watcher::Watcher(WatcherOptions options)
    : options_(std::move(options)),
      board_({.rank = options_.rank,
              .world_size = static_cast<int>(options_.arrivals.size()),
              .connect = options_.connect,
              .status = options_.status,
              .cpu_s = cpu_clock_of(options_),
              .period_s = options_.period_s,
              .stall_s = options_.stall_s},
             registry_),
      gone_s_(options_.arrivals.size()) {
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
  stopped_.notify_all();
  thread_.join();
}

void Watcher::publish_failure(const std::string& group, const std::string& cause) {
  board_.publish_failure(group, cause);
}

void Watcher::keep_last_words(const std::string& group, const std::vector<Operation>& operations) {
  board_.keep_last_words(group, operations);
}

void Watcher::run() {
  std::unique_lock lock(mutex_);
  double looked_s = now_s();
  while (!stopped_.wait_for(lock, Seconds(options_.period_s), [this] { return stop_; })) {
    lock.unlock();
    note_own_pause(std::exchange(looked_s, now_s()));
    note_departures();
    for (const auto& group : registry_.groups()) look_after(*group);
    lock.lock();
  }
}

/// A rank that was stopped has not seen other ranks' progress meanwhile. Its wait times restart.
void Watcher::note_own_pause(double looked_s) {
  if (now_s() - looked_s > kBeatsToBeSilent * options_.period_s) awake_since_s_ = now_s();
}

/// Start of the time for which an operation counts as waiting.
double Watcher::since_s(const Operation& operation) const {
  return std::max(operation.issued_s, awake_since_s_.load());
}

void Watcher::look_after(Group::State& group) {
  group.look_after_dropped();
  if (group.failed() || has_unheard_departures(group)) return;
  for (const auto look : {&Watcher::departure_in, &Watcher::disagreement_in, &Watcher::lateness_in}) {
    const std::optional<Finding> found = (this->*look)(group);
    if (!found || !group.is_running(found->number)) continue;  // it may have ended meanwhile
    return group.fail(text("rank ", options_.rank, ", group '", group.parts.name, "', ", found->cause));
  }
}

// ---- departed ranks ----

void Watcher::note_departures() {
  for (std::size_t rank = 0; rank < gone_s_.size(); ++rank) {
    const int world_rank = static_cast<int>(rank);
    if (!gone_s_[rank] && (is_dead(world_rank) || has_left(world_rank))) gone_s_[rank] = now_s();
  }
}

/// The last error of a departed rank must be read before any rank is named as the cause.
bool Watcher::has_unheard_departures(const Group::State& group) const {
  const auto& members = group.parts.world_ranks;
  return std::any_of(members.begin(), members.end(), [&](int rank) {
    const auto noticed_s = gone_s_[static_cast<std::size_t>(rank)];
    return noticed_s && !board_.has_asked_since(*noticed_s);
  });
}

std::optional<Watcher::Finding> Watcher::departure_in(const Group::State& group) {
  const auto& members = group.parts.world_ranks;
  const auto is_gone = [&](int rank) { return gone_s_[static_cast<std::size_t>(rank)].has_value(); };
  if (std::none_of(members.begin(), members.end(), is_gone)) return {};
  for (const auto& operation : group.pending()) {
    const std::string gone = who_is_gone(group, operation);
    if (!gone.empty() && is_sure_of_departures(group, operation))
      return Finding{operation.number, text(operation.record().describe(), ": ", gone)};
  }
  return {};
}

/// Whether the last bytes and the last heartbeat of departed ranks have had time to arrive.
bool Watcher::is_sure_of_departures(const Group::State& group, const Operation& operation) const {
  for (const int member : ranks_needed(operation, group.parts.rank, group.size())) {
    const int world_rank = group.parts.world_ranks[static_cast<std::size_t>(member)];
    const auto noticed_s = gone_s_[static_cast<std::size_t>(world_rank)];
    if (!noticed_s) continue;
    const bool heard_its_last = has_left(world_rank) || board_.observation(world_rank).looked_s > *noticed_s;
    const double passed_s = now_s() - std::max(*noticed_s, operation.issued_s);
    if (passed_s < (heard_its_last ? kGrace_s : kLastBeat_s)) return false;
  }
  return true;
}

std::string Watcher::who_is_gone(const Group::State& group, const Operation& operation) const {
  std::vector<std::string> gone;
  const Published known = board_.published(group.parts.name);
  for (const int member : ranks_needed(operation, group.parts.rank, group.size())) {
    const int world_rank = group.parts.world_ranks[static_cast<std::size_t>(member)];
    if (has_left(world_rank)) {
      const auto final_operations = known.find(member);
      const bool did_its_part = final_operations != known.end() &&
                                has_finished(operation, group.parts.rank, final_operations->second);
      if (!did_its_part) gone.push_back(text(name_of_rank(world_rank), " ", how_it_left(world_rank)));
    } else if (is_dead(world_rank)) {
      gone.push_back(text(name_of_rank(world_rank), " ", how_it_died(world_rank)));
    }
  }
  return join(gone, "; ");
}

/// A rank that received another rank's failure publishes none itself, and leaves because of that one.
std::string Watcher::how_it_left(int world_rank) const {
  std::string cause = board_.failure_told_by(world_rank);
  if (cause.empty()) cause = board_.first_failure();
  return cause.empty() ? "has left the world" : text("has left the world because of this: ", cause);
}

/// For a rank that has published a failure, and whose last heartbeat is not known here yet.
std::string Watcher::how_it_died(int world_rank) const {
  const std::string cause = board_.failure_told_by(world_rank);
  return cause.empty() ? "is dead" : text("has left the world because of this: ", cause);
}

// ---- mismatched operations ----

std::optional<Watcher::Finding> Watcher::disagreement_in(const Group::State& group) {
  const auto pending = group.pending();
  if (pending.empty() || now_s() - pending.front().issued_s < options_.stall_s) return {};
  const Published known = board_.published(group.parts.name);
  for (const auto& operation : pending) {
    const std::string disagreement =
        find_disagreement(operation, group.parts.rank, group.parts.world_ranks, known);
    if (!disagreement.empty()) {
      return Finding{operation.number,
                     text(name_of(operation.kind), " #", operation.number, ": ", disagreement)};
    }
  }
  return {};
}

// ---- late ranks ----

std::optional<Watcher::Finding> Watcher::lateness_in(const Group::State& group) {
  const auto waits = group.waits();
  std::erase_if(all_came_s_, [&](const auto& each) {
    const auto is_it = [&](const Operation& o) { return o.number == each.first.second; };
    return each.first.first == group.parts.name && std::none_of(waits.begin(), waits.end(), is_it);
  });
  for (const Operation& operation : waits) {
    const double age_s = now_s() - since_s(operation);
    if (age_s < options_.stall_s) continue;
    const Wait wait{.group = group,
                    .operation = operation,
                    .missing = missing_ranks(operation, group.parts.rank, group.parts.world_ranks,
                                             board_.published(group.parts.name)),
                    .age_s = age_s};
    const std::string late = lateness_of(wait);
    if (!late.empty()) return Finding{operation.number, text(operation.record().describe(), ": ", late)};
  }
  return {};
}

double Watcher::patience_s(const Wait& wait) const {
  return std::max(wait.group.parts.timeout_s, kBeatsToSee * options_.period_s);
}

double Watcher::all_came_s(const Wait& wait) {
  if (!wait.missing.empty()) return 0;
  return all_came_s_.try_emplace({wait.group.parts.name, wait.operation.number}, now_s()).first->second;
}

/// The reason why the operation fails; empty if it may still wait.
std::string Watcher::lateness_of(const Wait& wait) {
  const GroupParts& parts = wait.group.parts;
  const double patience = patience_s(wait);
  const double now = now_s();
  const double came_s = all_came_s(wait);
  if (wait.age_s < patience) return {};
  const std::string in_time = text("not over within ", human_duration(parts.timeout_s), " (comm.timeout_s)");
  const auto with = [](const std::string& what, const std::string& who) {
    return who.empty() ? what : text(what, ": ", who);
  };
  if (wait.age_s >= parts.slow_timeout_s) {
    return with(text("not over within ", human_duration(parts.slow_timeout_s), " (comm.slow_timeout_s)"),
                who_is_behind(wait.group, wait.operation));
  }
  if (const auto lost_s = board_.store_lost_s()) {
    return now - std::max(*lost_s, awake_since_s_.load()) < patience
               ? ""
               : with(in_time, who_is_behind(wait.group, wait.operation));
  }
  if (wait.missing.empty()) {
    return now - std::max(came_s, awake_since_s_.load()) < patience
               ? ""
               : with(in_time, who_is_behind(wait.group, wait.operation));
  }
  const Verdict verdict = judge(options_.rank, wait.missing, wait_statuses(wait), patience);
  if (!verdict.chain.empty()) return with(in_time, describe(verdict, wait));
  warn_slow(verdict.slow, wait);
  return {};
}

std::vector<WaitStatus> Watcher::wait_statuses(const Wait& wait) const {
  const double now = now_s();
  const double silence_s = std::max(patience_s(wait), kBeatsToBeSilent * options_.period_s);
  std::vector<WaitStatus> result;
  for (const PeerObservation& observation : board_.observations()) {
    const int world_rank = static_cast<int>(result.size());
    const bool looked = observation.looked_s > 0;
    const bool silent = looked && now - std::max(observation.heard_s, awake_since_s_.load()) >= silence_s;
    result.push_back({.lost = silent || observation.beat.leaves || is_dead(world_rank),
                      .idle_s = looked ? now - std::max(observation.progress_s, since_s(wait.operation)) : 0,
                      .made_progress = observation.made_progress,
                      .waits = observation.beat.waits,
                      .waits_for = observation.beat.waits_for});
  }
  return result;
}

/// Warns about slow ranks and reports their current work.
void Watcher::warn_slow(const std::vector<int>& slow, const Wait& wait) {
  if (!is_reporter(wait)) return;
  const GroupParts& parts = wait.group.parts;
  for (const int rank : slow) {
    // A rank that waits for the other slow ranks reports these.
    if (std::find(wait.missing.begin(), wait.missing.end(), rank) == wait.missing.end()) continue;
    SlowWarning& word = slow_warnings_[rank];
    if (now_s() - word.said_s < word.interval_s) continue;
    const bool first = now_s() - word.said_s > 2 * kLongerEachTime * word.interval_s;
    word = {.said_s = now_s(), .interval_s = first ? wait.age_s : kLongerEachTime * word.interval_s};
    options_.log.warning(name_of_rank(rank), " is slow: ", name_of(wait.operation.kind), " #",
                         wait.operation.number, " of group ", parts.name, " has waited ",
                         human_duration(wait.age_s), " for it; ", doing(board_.observation(rank).beat),
                         "; it makes progress and is waited for up to ", human_duration(parts.slow_timeout_s),
                         " (comm.slow_timeout_s)");
  }
}

/// The first of the ranks that wait in the same operation reports.
bool Watcher::is_reporter(const Wait& wait) const {
  if (!is_collective(wait.operation.kind)) return true;
  for (const int rank : wait.group.parts.world_ranks) {
    if (rank == options_.rank) return true;
    if (std::find(wait.missing.begin(), wait.missing.end(), rank) == wait.missing.end()) return false;
  }
  return true;
}

// ---- messages ----

std::string Watcher::explain(const Group::State& group, const Operation& operation, double patience_s) {
  const auto deadline = Deadline::after_s(patience_s);
  const auto first_round = board_.rounds();
  std::string gone;
  std::optional<double> noticed_s;
  while (!group.failed() && !(board_.rounds() >= first_round + 3 && deadline.expired())) {
    gone = who_is_gone(group, operation);
    if (!gone.empty() && !noticed_s) noticed_s = now_s();
    // A departed rank may have published the reason: when it is read, the group fails with it.
    if (noticed_s && board_.has_asked_since(*noticed_s)) break;
    // If the store is unreachable, the deadline ends the loop, shortly after the loss is detected.
    if (deadline.expired() || board_.has_lost_store(kStoreComesBack_s)) break;
    board_.hurry();
  }
  return gone.empty() ? who_is_behind(group, operation) : gone;
}

/// The ranks that have not issued the operation or cannot continue with it.
std::string Watcher::who_is_behind(const Group::State& group, const Operation& operation) const {
  std::vector<std::string> behind;
  const GroupParts& parts = group.parts;
  const Wait wait{
      .group = group,
      .operation = operation,
      .missing = missing_ranks(operation, parts.rank, parts.world_ranks, board_.published(parts.name)),
      .age_s = now_s() - since_s(operation)};
  const std::vector<WaitStatus> ranks = wait_statuses(wait);
  const auto lost_s = board_.store_lost_s();
  for (const int member : ranks_needed(operation, parts.rank, group.size())) {
    const int world_rank = parts.world_ranks[static_cast<std::size_t>(member)];
    const auto& process = processes_[static_cast<std::size_t>(world_rank)];
    const bool stopped = process && process->state().starts_with("stopped");
    const bool is_missing =
        std::find(wait.missing.begin(), wait.missing.end(), world_rank) != wait.missing.end();
    const WaitStatus& standing = ranks[static_cast<std::size_t>(world_rank)];
    const bool known = !lost_s && board_.observation(world_rank).looked_s > 0;
    if (stopped || (known && (is_missing || standing.lost)))
      behind.push_back(text(name_of_rank(world_rank), " ", state_of(world_rank, wait)));
  }
  if (behind.empty() && lost_s) {
    behind.push_back(text("the store that ", options_.store_host, " serves has not answered for ",
                          human_duration(now_s() - *lost_s)));
  }
  return join(behind, "; ");
}

std::string Watcher::describe(const Verdict& verdict, const Wait& wait) const {
  std::string result;
  const auto& chain = verdict.chain;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const bool last = i + 1 == chain.size();
    if (last && verdict.in_circle && std::count(chain.begin(), chain.end(), chain[i]) > 1) break;
    const PeerObservation observation = board_.observation(chain[i]);
    if (last && !verdict.in_circle) {
      result += text(name_of_rank(chain[i]), " ", state_of(chain[i], wait));
    } else {
      result += text(name_of_rank(chain[i]), " waits in ", observation.beat.operation, " for ",
                     last ? "this rank" : name_of_rank(chain[i + 1]), last ? "" : "; ");
    }
  }
  return verdict.in_circle ? text("ranks wait for each other: ", result) : result;
}

/// The part of the message after the name of the rank.
std::string Watcher::state_of(int world_rank, const Wait& wait) const {
  const auto index = static_cast<std::size_t>(world_rank);
  const PeerObservation observation = board_.observation(world_rank);
  if (observation.beat.leaves) return how_it_left(world_rank);
  if (is_dead(world_rank)) return how_it_died(world_rank);
  if (processes_[index] && processes_[index]->state().starts_with("stopped"))
    return "is stopped (SIGSTOP, a debugger?)";
  const double silent_s = now_s() - observation.heard_s;
  if (observation.looked_s > 0 && silent_s > kBeatsToBeSilent * options_.period_s)
    return text("was last heard of ", human_duration(silent_s), " ago");
  const auto& missing = wait.missing;
  const bool is_missing = std::find(missing.begin(), missing.end(), world_rank) != missing.end();
  std::vector<std::string> words{is_missing ? "has not issued it" : "stands still"};
  for (const auto& [member, operations] : board_.published(wait.group.parts.name)) {
    const bool is_it = wait.group.parts.world_ranks[static_cast<std::size_t>(member)] == world_rank;
    if (!is_it || !is_missing) continue;
    words.push_back(text("its last operation: ", operations.empty() ? "none" : last_of(operations)));
  }
  words.push_back(doing(observation.beat));
  const double idle_s = now_s() - std::max(observation.progress_s, since_s(wait.operation));
  if (idle_s >= patience_s(wait)) words.push_back(text("it has not got on for ", human_duration(idle_s)));
  return join(words, "; ");
}

std::string Watcher::name_of_rank(int world_rank) const {
  const Arrival& arrival = options_.arrivals[static_cast<std::size_t>(world_rank)];
  return text("rank ", world_rank, " (pid ", arrival.pid, ")");
}

bool Watcher::has_left(int world_rank) const { return board_.observation(world_rank).beat.leaves; }

bool Watcher::is_dead(int world_rank) const {
  const auto& process = processes_[static_cast<std::size_t>(world_rank)];
  return process && process->dead();
}

}  // namespace trireme::comm
