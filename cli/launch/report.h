#pragma once
// The result of a world's ranks: the root-cause rank, messages, and the exit code. Pure.

#include <string>
#include <vector>

#include "trireme/telemetry/status_page.h"

namespace trireme::cli {

/// How one rank ended.
struct RankStory {
  int rank = 0;
  int pid = 0;
  int wait_status = 0;
  double ended_s = 0;    ///< since the start of the world
  int frozen_by = 0;     ///< the signal that had stopped it when the world was given up; 0: none
  bool stopped = false;  ///< by the launcher; its end is a consequence
  telemetry::Status status;
  bool ended = true;  ///< false: it still runs
};

struct WorldStory {
  std::vector<RankStory> ranks;
  int told_to_stop = 0;   ///< the signal that the launcher itself got; 0: none
  int job_exit_code = 0;  ///< of an elastic job whose leader has ended it
  long oom_kills = 0;     ///< processes that the kernel killed for lack of memory meanwhile
};

/// The rank whose end explains the others': one that was killed, else a frozen one, else the first that
/// failed for a reason of its own, else the first that failed. Nothing when no rank failed by itself.
const RankStory* culprit(const WorldStory& world);

/// 0, or the exit code of launch().
int exit_code_of(const WorldStory& world);

/// Whether a rank that ends with this code does so each time: it is not started again.
bool ends_the_job(int exit_code);

/// Lines without newline; none when all ranks ended with 0.
std::vector<std::string> report(const WorldStory& world);

/// What the kernel counts so far: processes killed for lack of memory in this control group, else on this
/// host.
long count_oom_kills();

}  // namespace trireme::cli
