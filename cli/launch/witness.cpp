#include "cli/launch/witness.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "trireme/autopsy/operation_text.h"
#include "trireme/autopsy/verdict.h"
#include "trireme/base/clock.h"
#include "trireme/base/control_groups.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/unix_time.h"

namespace trireme::cli {
namespace {

// Status pages without a change for this long are a reason to read the processes.
constexpr double kSuspicion_s = 1;
// A stall is judged after this long, and again when it has become longer by this factor.
constexpr double kStall_s = 3;
constexpr double kJudgeAgain = 1.2;
// A launcher without a look for this long was stopped itself.
constexpr double kAway_s = 5;
// A slow run makes this much less progress than at its best, over this long.
constexpr double kSlowdown = 10;
constexpr double kSlow_s = 2;
// A run with this much less progress is observed.
constexpr double kSuspectedSlowdown = 3;
// Time between two reports about a slow run.
constexpr double kReportAgain_s = 60;

// With fewer samples, a thread may be ready each time although it mostly waits for something else.
constexpr int kFewLooks = 3;
constexpr double kMostLooks = 0.75;

bool same_place(const telemetry::Status& a, const telemetry::Status& b) {
  return a.action == b.action && a.own_work == b.own_work && a.step == b.step &&
         autopsy::without_waits(a.operation) == autopsy::without_waits(b.operation);
}

/// "process 4711 (scancel)".
std::string name_of_process(int pid) {
  std::ifstream file(text("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return text("process ", pid, name.empty() ? "" : text(" (", printable(name), ")"));
}

/// Whether the kernel killed the process for lack of memory, and the cgroup whose limit it was.
void look_into_log(autopsy::RankEvidence& rank, autopsy::MemoryKillLog& kernel) {
  const std::optional<std::string> log = kernel.read();
  if (!log) return;
  rank.log_read = true;
  const auto kill = autopsy::find_memory_kill(*log, rank.pid);
  rank.killed_for_memory = kill.has_value();
  rank.group_oom_kills = kill && kill->by_limit ? std::max<std::int64_t>(rank.group_oom_kills, 1) : 0;
  if (!kill || kill->group.empty() || rank.group.ends_with(kill->group)) return;
  rank.group_limit_bytes = 0;
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
  const auto groups = control_groups_of(process.pid(), "memory");
  if (groups.empty() || groups.front().folder == watched.group) return;
  watched.group = groups.front().folder.string();
  watched.at_first = autopsy::read_memory_groups(process.pid());
}

bool Witness::all_have_begun() const {
  return std::ranges::all_of(ranks_,
                             [](const Watched& each) { return each.changed_s > 0 || each.process->ended(); });
}

/// The time of the last change of a page.
double Witness::last_change_s() const {
  double changed_s = 0;
  for (const Watched& watched : ranks_) changed_s = std::max(changed_s, watched.changed_s);
  return changed_s;
}

void Witness::measure_speed(double now) {
  for (const Watched& watched : ranks_) {
    const int rank = watched.process->rank();
    if (watched.process->ended())
      speed_.leave_out(rank);
    else
      speed_.note(rank, watched.seen.operation, now);
  }
}

void Witness::forget_suspicion() {
  suspected_s_ = judged_still_s_ = 0;
  speed_.forget_present();
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
  const double now = now_s(), changed_s = last_change_s(), still = now - changed_s;
  const bool was_away = looked_s_ > 0 && now - looked_s_ > kAway_s;
  looked_s_ = now;
  if (was_away) pauses_.disturb();
  // Readings from before a long pause do not apply to the time after it.
  if (pauses_.look(changed_s) >= kStall_s || was_away) forget_suspicion();
  measure_speed(now);
  if (still < kSuspicion_s && stall_) {
    stall_.reset();
    forget_suspicion();
    return "the run makes progress again";
  }
  const double slower = speed_.slowdown();
  if (still < kSuspicion_s && slower < kSuspectedSlowdown) {
    suspected_s_ = judged_still_s_ = 0;
    return {};
  }
  if (stall_ || !is_time_to_judge(still, slower, now)) return {};
  autopsy::Evidence evidence = collect(still >= kStall_s ? "stall" : "slow");
  evidence.slowdown = slower;
  std::string line = describe(evidence, still);
  if (!line.empty()) *found = std::move(evidence);
  return line;
}

/// Reads the processes at the start of a suspicion, and samples them during it.
bool Witness::is_time_to_judge(double still, double slower, double now) {
  if (suspected_s_ == 0) suspect(now);
  for (Watched& watched : ranks_) {
    ++watched.looks;
    watched.ready += autopsy::is_ready_to_run(watched.process->pid());
  }
  if (now - suspected_s_ < kStall_s - kSuspicion_s) return false;
  const bool told = reported_slow_s_ != 0 && now - reported_slow_s_ < kReportAgain_s;
  if (still < kStall_s) return still < kSlow_s && slower >= kSlowdown && !told;
  if (still < kJudgeAgain * judged_still_s_) return false;
  judged_still_s_ = still;
  return true;
}

/// Keeps the evidence of a stall. Empty if it shows no cause, or one that the ranks' work explains.
std::string Witness::describe(const autopsy::Evidence& evidence, double still) {
  const autopsy::Verdict verdict = autopsy::judge(evidence);
  if (verdict.cause.empty()) return {};
  if (evidence.occasion == "slow") {
    reported_slow_s_ = now_s();
    suspected_s_ = 0;
    return text("the run is ", static_cast<std::int64_t>(evidence.slowdown),
                " times slower than before: ", autopsy::paragraph(verdict));
  }
  if (!verdict.shown_by_work) pauses_.disturb();
  if (verdict.shown_by_work && !pauses_.is_unusual(still)) return {};
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
    autopsy::describe_memory(rank, watched.at_first, autopsy::read_again(watched.at_first));
    autopsy::describe_process(rank, watched.before, autopsy::read_process(process.pid()));
    // The kernel counts a wait for a core only when it is over, and this one continues.
    const double ready = static_cast<double>(watched.ready) / std::max(watched.looks, 1);
    if (watched.looks >= kFewLooks && ready >= kMostLooks)
      rank.waits_for_core = std::max(rank.waits_for_core, ready - rank.busy);
  }
  return evidence;
}

autopsy::Evidence Witness::end(const WorldStory& world,
                               const std::vector<std::vector<std::string>>& last_lines) {
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
    // The state at the end; after a stall, the state in it.
    if (rank.action.empty()) rank.action = story.status.action;
    if (rank.operation.empty()) rank.operation = autopsy::without_waits(story.status.operation);
    if (!rank.freezer)
      autopsy::describe_memory(rank, ranks_[i].at_first, autopsy::read_again(ranks_[i].at_first));
    if (rank.signal == SIGKILL && !rank.ended_by_launcher) look_into_log(rank, log_);
  }
  return evidence;
}

}  // namespace trireme::cli
