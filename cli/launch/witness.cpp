#include "cli/launch/witness.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "trireme/autopsy/kernel_log.h"
#include "trireme/autopsy/operation_text.h"
#include "trireme/autopsy/verdict.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/unix_time.h"

namespace trireme::cli {
namespace {

// Pages that have not changed for so long are a reason to look at the processes.
constexpr double kSuspicion_s = 1;
// A stall is reported after so long, and after a multiple of the longest time that a page stayed unchanged
// before.
constexpr double kStall_s = 3;
constexpr double kLongerThanBefore = 3;
// A slow run makes this much less progress than its best before, over so long.
constexpr double kSlowdown = 10;
constexpr double kSlow_s = 2;
// One that makes this much less progress is looked at.
constexpr double kSuspectedSlowdown = 3;
// Between two reports about a slow run.
constexpr double kReportAgain_s = 60;

// With fewer looks a thread may have been found ready each time although it mostly waits for something else.
constexpr int kFewLooks = 3;
constexpr double kMostLooks = 0.75;

bool same_place(const telemetry::Status& a, const telemetry::Status& b) {
  return a.action == b.action && a.own_work == b.own_work && a.step == b.step &&
         without_waits(a.operation) == autopsy::without_waits(b.operation);
}

/// "process 4711 (scancel)".
std::string name_of_process(int pid) {
  std::ifstream file(text("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return text("process ", pid, name.empty() ? "" : text(" (", printable(name), ")"));
}

/// Whether the kernel killed the process for lack of memory, and for which group's.
void look_into_log(autopsy::RankEvidence& rank) {
  const std::optional<std::string> log = autopsy::read_memory_kills();
  if (!log) return;
  rank.log_read = true;
  const auto kill = autopsy::find_memory_kill(*log, rank.pid);
  rank.killed_for_memory = kill.has_value();
  if (!kill || kill->group.empty()) return;
  rank.group_oom_kills = std::max<std::int64_t>(rank.group_oom_kills, 1);
  if (kill->group != rank.group) rank.group_limit_bytes = 0;
  rank.group = kill->group;
}

}  // namespace

void Witness::add(const RankProcess& process) { ranks_.push_back({.process = &process}); }

void Witness::look_at(Watched& watched) {
  const RankProcess& process = *watched.process;
  if (process.ended()) return;
  const double now = now_s();
  const telemetry::Status status = process.status();
  const bool has_begun = !status.action.empty() || !status.operation.empty();
  if (has_begun && (watched.changed_s == 0 || !same_place(status, watched.seen))) watched.changed_s = now;
  watched.seen = status;
  const autopsy::MemoryGroup group = autopsy::read_memory_group(process.pid());
  if (!group.path.empty() && group.path != watched.group) {
    watched.group = group.path;
    watched.at_first = group;
  }
}

bool Witness::all_have_begun() const {
  return std::ranges::all_of(ranks_,
                             [](const Watched& each) { return each.changed_s > 0 || each.process->ended(); });
}

/// How long all pages have been as they are.
double Witness::still_s(double now) const {
  double changed_s = 0;
  for (const Watched& watched : ranks_) changed_s = std::max(changed_s, watched.changed_s);
  return now - changed_s;
}

/// How much slower the run is than at its best; 1 where that is not known.
double Witness::slowdown(double now) {
  std::uint64_t operations = 0;
  for (const Watched& watched : ranks_) operations += autopsy::operation_number(watched.seen.operation);
  progress_.push_back({now, operations});
  while (progress_.size() > 2 && now - progress_[1].at_s >= kSlow_s) progress_.pop_front();
  const Progress& first = progress_.front();
  const double passed_s = now - first.at_s;
  if (passed_s < kSlow_s || operations < first.operations) return 1;
  const double rate = static_cast<double>(operations - first.operations) / passed_s;
  best_rate_ = std::max(best_rate_, rate);
  // Few operations in all the time show no speed.
  const bool is_known = best_rate_ * kSlow_s >= 2 * kSlowdown;
  return is_known ? best_rate_ / std::max(rate, 1 / passed_s) : 1;
}

void Witness::suspect(double now) {
  suspected_s_ = now;
  for (Watched& watched : ranks_) {
    if (!watched.process->ended()) watched.before = autopsy::read_process(watched.process->pid());
    watched.looks = watched.ready = 0;
  }
  host_before_ = autopsy::read_host();
}

std::string Witness::look(std::optional<autopsy::Evidence>* found) {
  for (Watched& watched : ranks_) look_at(watched);
  if (failure_ || told_to_stop_ != 0 || !all_have_begun()) return {};
  const double now = now_s(), still = still_s(now), slower = slowdown(now);
  const bool stands = still >= kSuspicion_s;
  if (!stands && stall_) {
    stall_.reset();
    suspected_s_ = 0;
    return "the run makes progress again";
  }
  if (!stands && slower < kSuspectedSlowdown) {
    suspected_s_ = 0;
    longest_gap_s_ = std::max(longest_gap_s_, still);
    return {};
  }
  if (stall_) return {};
  if (suspected_s_ == 0) suspect(now);
  for (Watched& watched : ranks_) {
    ++watched.looks;
    watched.ready += autopsy::is_ready_to_run(watched.process->pid());
  }
  const bool enough = now - suspected_s_ >= kStall_s - kSuspicion_s;
  const bool told = reported_slow_s_ != 0 && now - reported_slow_s_ < kReportAgain_s;
  const bool is_stall = still >= std::max(kStall_s, kLongerThanBefore * longest_gap_s_);
  const bool is_slow = still < kSlow_s && slower >= kSlowdown && !told;
  if (!enough || (!is_stall && !is_slow)) return {};
  autopsy::Evidence evidence = collect(is_stall ? "stall" : "slow");
  evidence.slowdown = slower;
  std::string line = describe(evidence);
  if (!line.empty()) *found = std::move(evidence);
  return line;
}

/// Remembers the evidence of a cause; empty where it shows none.
std::string Witness::describe(const autopsy::Evidence& evidence) {
  const autopsy::Verdict verdict = autopsy::judge(evidence);
  if (verdict.cause.empty()) return {};
  if (evidence.occasion == "slow") {
    reported_slow_s_ = now_s();
    return text("the run is ", static_cast<std::int64_t>(evidence.slowdown),
                " times slower than before: ", autopsy::paragraph(verdict));
  }
  stall_ = evidence;
  return "the run stands still: " + autopsy::paragraph(verdict);
}

void Witness::note_failure() {
  if (!failure_) failure_ = stall_ ? stall_ : collect("end");
}

void Witness::note_stop(int signal, int sender) {
  if (told_to_stop_ != 0) return;
  told_to_stop_ = signal;
  if (sender > 0) told_by_ = name_of_process(sender);
  note_failure();
}

autopsy::Evidence Witness::collect(const std::string& occasion) const {
  autopsy::Evidence evidence;
  evidence.occasion = occasion;
  evidence.unix_s = unix_now_s();
  evidence.world_size = world_size_;
  evidence.hosts.push_back(autopsy::describe_host(host_at_start_, host_before_, autopsy::read_host()));
  const double now = now_s();
  for (const Watched& watched : ranks_) {
    const RankProcess& process = *watched.process;
    autopsy::RankEvidence& rank = evidence.ranks.emplace_back();
    rank.rank = process.rank();
    rank.pid = process.pid();
    rank.host = evidence.hosts.front().name;
    const telemetry::Status status = process.status();
    rank.action = status.action;
    rank.own_work = status.own_work;
    rank.operation = autopsy::without_waits(status.operation);
    rank.waits_for = autopsy::ranks_waited_for(status.operation);
    rank.still_s = watched.changed_s > 0 ? now - watched.changed_s : 0;
    rank.frozen_by = process.stopped_by();
    if (process.ended()) continue;
    autopsy::describe_process(rank, watched.before, autopsy::read_process(process.pid()));
    // The kernel counts a wait for a core when it is over, and this one lasts.
    const double ready = static_cast<double>(watched.ready) / std::max(watched.looks, 1);
    if (watched.looks >= kFewLooks && ready >= kMostLooks)
      rank.waits_for_core = std::max(rank.waits_for_core, ready - rank.busy);
  }
  return evidence;
}

autopsy::Evidence Witness::end(const WorldStory& world,
                               const std::vector<std::vector<std::string>>& last_lines) const {
  autopsy::Evidence evidence = failure_ ? *failure_ : collect("end");
  evidence.occasion = "end";
  evidence.unix_s = unix_now_s();
  evidence.told_to_stop = told_to_stop_;
  evidence.told_by = told_by_;
  evidence.hosts.front().oom_kills = autopsy::read_host().oom_kills - host_at_start_.oom_kills;
  for (std::size_t i = 0; i < world.ranks.size(); ++i) {
    const RankStory& story = world.ranks[i];
    autopsy::RankEvidence& rank = evidence.ranks[i];
    rank.ended = story.ended;
    rank.ended_by_launcher = story.stopped;
    rank.signal = story.ended && WIFSIGNALED(story.wait_status) ? WTERMSIG(story.wait_status) : 0;
    rank.exit_code = story.ended && WIFEXITED(story.wait_status) ? WEXITSTATUS(story.wait_status) : 0;
    rank.ended_s = story.ended_s;
    if (story.frozen_by != 0) rank.frozen_by = story.frozen_by;
    rank.last_lines = autopsy::telling_lines(last_lines[i]);
    // Where it stood when it ended; of a stall where it stood then.
    if (rank.action.empty()) rank.action = story.status.action;
    if (rank.operation.empty()) rank.operation = autopsy::without_waits(story.status.operation);
    const autopsy::MemoryGroup group = autopsy::read_group(ranks_[i].at_first);
    rank.group = group.path;
    rank.group_limit_bytes = group.limit_bytes;
    rank.group_oom_kills = group.oom_kills - ranks_[i].at_first.oom_kills;
    if (rank.signal == SIGKILL && !rank.ended_by_launcher) look_into_log(rank);
  }
  return evidence;
}

}  // namespace trireme::cli
