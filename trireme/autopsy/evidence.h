#pragma once
// The evidence about a run that has failed or stalls: the end of each rank, or its present position, with the
// numbers of /proc and of its control groups. Values only: a launcher collects them for its own ranks, and
// merged() joins those of several hosts. Rates are those of the last seconds before the collection.

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::autopsy {

/// A thread that waits for something outside of the process.
struct BlockedThread {
  std::string name;    ///< "trireme-save"; the first thread has the name of the program
  std::string state;   ///< as in /proc: "S", "D"
  std::string call;    ///< "read", "fsync"; empty where it is not known
  std::string target;  ///< "/data/train.bin", "tcp to 10.0.0.2:443"; empty: none
  std::string kind;    ///< of the target: "file", "pipe", "socket"
  std::string kernel;  ///< the function of the kernel that it sleeps in
  bool first = false;  ///< the thread that computes
};

/// A connection whose peer does not confirm the bytes sent to it.
struct SilentPeer {
  std::string address;
  std::int64_t retransmissions = 0;
};

/// Of one rank: its status page, its end, and its process before that.
struct RankEvidence {
  int rank = -1;
  int pid = 0;
  std::string host;
  // The status page.
  std::string action;
  std::string operation;
  std::string own_work;
  double still_s = 0;          ///< since the page changed last
  std::vector<int> waits_for;  ///< ranks that have not come to the operation it waits in
  // The end.
  bool ended = false;
  bool ended_by_launcher = false;  ///< its end is a consequence
  int exit_code = 0;
  int signal = 0;  ///< 0: it exited
  double ended_s = 0;
  std::vector<std::string> last_lines;  ///< of its standard error
  bool log_read = false;           ///< the kernel's log, which names the processes that it killed for memory
  bool killed_for_memory = false;  ///< by that log
  bool kills_counted = false;      ///< its control group counts the processes killed for memory
  std::int64_t oom_kills = 0;      ///< of that group since the start, by any limit and for the host
  std::int64_t group_oom_kills = 0;     ///< of them, by the limit of `group`
  std::string group;                    ///< the control group that has a limit, or is frozen: a folder
  std::uint64_t group_limit_bytes = 0;  ///< 0: none
  // The process.
  std::string state;  ///< as in /proc: "R", "S", "D", "T", "t"; empty: not looked at
  int frozen_by = 0;  ///< the signal that has stopped it
  bool freezer = false;
  double window_s = 0;            ///< over which the rates were measured; 0: they were not
  double busy = 0;                ///< share of the time in which the first thread ran
  double busy_all = 0;            ///< processor time of all threads, in cores
  double waits_for_core = 0;      ///< share of the time in which the first thread was ready and had no core
  double throttled = 0;           ///< share of the time in which its quota of processor time was spent
  double major_faults_per_s = 0;  ///< pages that it had to read from a disk
  double bytes_per_s = 0;         ///< read and written
  std::uint64_t swapped_bytes = 0;
  std::vector<BlockedThread> blocked;
  std::vector<SilentPeer> silent_peers;
};

/// Of one host, which may have other work.
struct HostEvidence {
  std::string name;
  std::int64_t oom_kills = 0;  ///< by the kernel, since the start
  double cpu_pressure = 0;     ///< share of the last ten seconds in which a task had no core
  double memory_pressure = 0;  ///< in which all tasks waited for memory
  double io_pressure = 0;      ///< in which all tasks waited for a disk
  double swapped_pages_per_s = 0;
};

struct Evidence {
  std::string occasion = "end";  ///< "end", "stall", "slow"
  double unix_s = 0;
  int world_size = 0;
  int told_to_stop = 0;  ///< the signal that the launcher itself got; 0: none
  std::string told_by;   ///< its sender: "process 4711 (scancel)"; empty: not known
  double slowdown = 0;   ///< of "slow": usual speed divided by that of the last seconds
  std::vector<HostEvidence> hosts;
  std::vector<RankEvidence> ranks;  ///< by number
};

/// Of the lines that a rank wrote to standard error those that report an exception, and the last one;
/// bounded.
std::vector<std::string> telling_lines(const std::vector<std::string>& lines);

/// The evidence of several hosts about one failure. The occasion is that of the first host.
Evidence merged(std::vector<Evidence> parts);

}  // namespace trireme::autopsy
