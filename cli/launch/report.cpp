#include "cli/launch/report.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "trireme/autopsy/process_readings.h"
#include "trireme/autopsy/signals.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

constexpr std::size_t kMostOthers = 16;

bool failed(const RankStory& rank) {
  return rank.ended && (WIFSIGNALED(rank.wait_status) || WEXITSTATUS(rank.wait_status) != 0);
}

/// Smaller means closer to the cause.
int distance_from_cause(const RankStory& rank) {
  if (rank.frozen_by != 0) return 1;
  if (WIFSIGNALED(rank.wait_status)) return 0;
  return WEXITSTATUS(rank.wait_status) != kExitComm ? 2 : 3;
}

std::string meaning_of(int exit_code) {
  switch (exit_code) {
    case kExitUsage:
      return " (usage or configuration)";
    case kExitComm:
      return " (communication)";
    case kExitData:
      return " (data or checkpoint)";
    case kExitDiverged:
      return " (training diverged)";
    case kExitInternal:
      return " (an unexpected exception, or no memory: see its last lines)";
    case 126:
    case 127:
      return " (a program it wanted to run is missing)";
    default:
      return "";
  }
}

std::string end_of(const RankStory& rank) {
  if (WIFSIGNALED(rank.wait_status)) {
    return text("was killed by ", autopsy::signal_name(WTERMSIG(rank.wait_status)),
                WCOREDUMP(rank.wait_status) ? " (core dumped)" : "");
  }
  const int code = WEXITSTATUS(rank.wait_status);
  return text("exited with code ", code, meaning_of(code));
}

std::string cause_of(const RankStory& rank, const WorldStory& world) {
  const std::string who = text("rank ", rank.rank, " (pid ", rank.pid, ") ");
  if (rank.frozen_by != 0) {
    bool was_missed = false, others_ended = world.ranks.size() > 1;
    for (const auto& other : world.ranks) {
      if (other.rank == rank.rank) continue;
      was_missed = was_missed || (other.frozen_by == 0 && (other.stopped || failed(other)));
      others_ended = others_ended && other.frozen_by == 0;
    }
    return text(who, "was frozen by ", autopsy::signal_name(rank.frozen_by),
                was_missed     ? "; the others gave up waiting for it"
                : others_ended ? " when all others had ended"
                               : ", and no rank of this launcher was running");
  }
  std::string why;
  if (WIFSIGNALED(rank.wait_status)) {
    const int signal = WTERMSIG(rank.wait_status);
    if (signal == SIGKILL && world.oom_kills > 0) {
      why = text(": by the kernel for lack of memory (it has killed ", world.oom_kills,
                 " process(es) since the start); use a smaller batch, fewer ranks or more memory");
    } else if (signal == SIGKILL) {
      why = ": by a user, a scheduler, or the kernel for lack of memory";
    } else if (autopsy::is_crash(signal)) {
      why = ": a crash of the program; its own message may stand above";
    } else if (const auto* reason = autopsy::reason_of(signal)) {
      why = text(": ", reason->reason);
    }
  }
  return text(who, end_of(rank), " after ", human_duration(rank.ended_s), why);
}

/// The rank's action from its status page; empty if it never reported one.
std::string doing(const RankStory& rank) {
  std::string result;
  if (!rank.status.action.empty()) result = text("was in: ", rank.status.action);
  if (!rank.status.own_work.empty()) {
    result += text(result.empty() ? "" : "; ", "was busy with: ", rank.status.own_work);
  }
  if (!rank.status.operation.empty()) {
    result += text(result.empty() ? "" : "; ", "last operation: ", rank.status.operation);
  }
  return result;
}

std::string line_about(const RankStory& rank, const RankStory* cause) {
  std::string line = text("  rank ", rank.rank, ": ");
  if (&rank != cause)
    line += !rank.ended ? text("continues") : rank.stopped ? text("stopped by the launcher") : end_of(rank);
  const std::string what = doing(rank);
  if (!what.empty()) line += text(&rank == cause ? "" : "; ", what);
  if (&rank == cause && what.empty()) line += "did not say what it was doing";
  return line;
}

}  // namespace

const RankStory* culprit(const WorldStory& world) {
  const RankStory* best = nullptr;
  for (const auto& rank : world.ranks) {
    if (rank.frozen_by == 0 && (rank.stopped || !failed(rank))) continue;
    const bool nearer =
        best == nullptr || distance_from_cause(rank) < distance_from_cause(*best) ||
        (distance_from_cause(rank) == distance_from_cause(*best) && rank.ended_s < best->ended_s);
    if (nearer) best = &rank;
  }
  return best;
}

int exit_code_of(const WorldStory& world) {
  if (world.told_to_stop != 0) return 128 + world.told_to_stop;
  const RankStory* cause = culprit(world);
  if (cause == nullptr) return world.job_exit_code;
  const bool explains_itself = cause->frozen_by == 0 && WIFEXITED(cause->wait_status);
  return explains_itself ? WEXITSTATUS(cause->wait_status) : static_cast<int>(kExitComm);
}

bool ends_the_job(int exit_code) { return exit_code == kExitUsage || exit_code == kExitDiverged; }

std::vector<std::string> report(const WorldStory& world) {
  if (world.told_to_stop != 0 && world.ranks.empty())
    return {
        text("stopped by ", autopsy::signal_name(world.told_to_stop), "; this host has no rank any more")};
  if (world.told_to_stop != 0) {
    return {text("stopped by ", autopsy::signal_name(world.told_to_stop), "; all ", world.ranks.size(),
                 " rank(s) have ended")};
  }
  const RankStory* cause = culprit(world);
  if (cause == nullptr && world.job_exit_code != 0)
    return {"error: the job has ended, and no rank of this host has failed; the reason stands above"};
  if (cause == nullptr) return {};
  std::vector<std::string> lines = {"error: " + cause_of(*cause, world), line_about(*cause, cause)};
  for (const auto& rank : world.ranks) {
    if (&rank == cause) continue;
    if (lines.size() == kMostOthers + 2) {
      lines.push_back(text("  ... and ", world.ranks.size() - 1 - kMostOthers, " more ranks"));
      break;
    }
    lines.push_back(line_about(rank, cause));
  }
  return lines;
}

long count_oom_kills() {
  const auto groups = autopsy::read_memory_groups(::getpid());
  return groups.empty() ? autopsy::read_host().oom_kills : groups.front().oom_kills;
}

}  // namespace trireme::cli
