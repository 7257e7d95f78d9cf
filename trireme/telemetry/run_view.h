#pragma once
// The ranks of a run as they are right now: rates and shares between two samples of their status pages.
// Values and pure functions; live_run.h takes the samples.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "trireme/telemetry/rank_usage.h"
#include "trireme/telemetry/status_page.h"

namespace trireme::telemetry {

/// The kernel's values for the process of a rank. Bytes are -1 where it has none.
struct ProcessSample {
  int pid = 0;        ///< as this process numbers it
  char state = '?';   ///< of /proc/PID/stat: 'R', 'S', 'T' for stopped, ...
  double cpu_s = -1;  ///< processor time used so far
  std::int64_t rss_bytes = -1;
  std::int64_t disk_read_bytes = -1, disk_written_bytes = -1;  ///< of /proc/PID/io
};

/// The share of time in which processes of the host waited for a resource, of the last 10 s: the avg10 of
/// /proc/pressure/{cpu,memory,io}, in percent. None where the kernel has no such file.
struct Pressure {
  std::optional<double> some = {};  ///< at least one process waited
  std::optional<double> full = {};  ///< all processes waited
};
/// Of all resources that the kernel measures.
struct HostPressure {
  Pressure cpu = {}, memory = {}, io = {};
};

/// State of one rank at one moment.
struct RankSample {
  Status status = {};
  Usage usage = {};
  ProcessSample process = {};
};

/// All ranks of a run on this host at one moment.
struct RunSample {
  std::int64_t at_ns = 0;              ///< on the monotonic clock
  std::vector<RankSample> ranks = {};  ///< by rank
  HostPressure pressure = {};
  std::string host = {};
};

/// Rates of reads and writes.
struct DiskRate {
  double read = 0, written = 0;  ///< bytes per second
};

/// One rank between two samples.
struct RankView {
  int rank = -1, pid = 0, role = 0;
  std::uint64_t step = 0;
  double window_s = 0;      ///< seconds between the samples of this rank
  double steps_per_s = 0;   ///< 0 where there is no earlier sample
  std::string action = {};  ///< "0B3"; its own work where it has some: "saving a checkpoint"
  std::string operation = {};
  Activity activity = Activity::kOther;
  bool waits = false;    ///< for other ranks, right now
  bool stopped = false;  ///< by a signal
  double for_s = 0;      ///< since when it is in that
  double own_share = 0;  ///< of the time between the samples in which it did not wait for other ranks
  double wait_share = 0;
  double data_share = 0;                               ///< waiting for its data: a part of its own time
  std::array<double, kNumActivities> own_shares = {};  ///< by Activity, without waits for other ranks
  double cpu_share = -1;                               ///< cores used; -1: not known
  std::optional<double> loader_fill = {};              ///< mean share of the read-ahead that steps found
  int loader_depth = 0;
  std::int64_t rss_bytes = -1;
  MemoryUse memory = {}, device_memory = {};
  double sent_per_s = 0;                         ///< bytes
  std::array<DiskRate, kNumDiskUses> disk = {};  ///< by DiskUse
  std::optional<DiskRate> process_disk = {};     ///< all files of the process, as the kernel counts
  std::vector<ActivitySpan> spans = {};          ///< that began or continued after the first sample
};

struct RunView {
  std::string host = {};
  std::string run = {};  ///< folder; empty: a program without one
  int world_size = 0;    ///< ranks of the run on all hosts; 0: not known
  double window_s = 0;   ///< of the rank that is longest in both samples
  std::int64_t at_ns = 0;
  std::vector<RankView> ranks = {};  ///< the slowest first
  HostPressure pressure = {};
};

/// Ranks are compared with the same process in the earlier sample; one that is new there has rates since its
/// own begin.
RunView view_between(const RunSample& before, const RunSample& now);

/// The rank that the others wait for.
struct Straggler {
  int rank = -1;
  Activity activity = Activity::kOther;  ///< in which it loses most
  std::string action = {};               ///< that it is in
  double cost = 0;    ///< share of the time that would be saved, were it as fast as its peers
  double longer = 0;  ///< by which share its own time exceeds the median of its peers'
  bool stopped = false;
};
/// A straggler costs more than this share of the time.
inline constexpr double kMinCost = 0.05;

/// The rank whose own time is longest, by more than kMinCost of all time above the median of the other
/// ranks of its role. A rank without a peer has no straggler's measure, unless it is stopped.
std::optional<Straggler> straggler(const RunView& view);
/// "rank 3 takes 40 % longer than its peers, which costs 29 % of the time: most in backward, now: 0B3"
std::string describe(const Straggler& straggler);

}  // namespace trireme::telemetry
