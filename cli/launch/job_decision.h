#pragma once
// What the leader of an elastic job does next, from what it knows of hosts and processes. Pure.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "trireme/wire/elastic_world.h"

namespace trireme::cli {

/// A host of the job.
struct HostView {
  int node = 0;
  double silent_s = 0;           ///< since its last report
  wire::HostReport report = {};  ///< the last one
  int num_placed = 0;            ///< processes that worlds have started there so far
  bool lives(double most_s) const { return silent_s < most_s; }
};

struct JobView {
  wire::ElasticWorld world{.generation = -1};  ///< the present one; generation -1: none yet
  std::vector<HostView> hosts = {};
  std::map<std::string, wire::WaitingMember> waiting = {};  ///< by id: processes that have lost the world
  bool is_lost = false;                                     ///< by a rank at least
  bool wants_next = false;                                  ///< ranks were asked to leave the world
  std::set<int> asked_to_leave = {};  ///< hosts that were leaving when the ranks were asked.
  /// A new leader has the world from the record of the job, and no host of that world has reported to it.
  bool starts_again = false;
  int stop_signal = 0;          ///< that all ranks were told; 0: none
  std::vector<int> sizes = {};  ///< of worlds that the program can run in, rising; empty: not known
  double settled_s = 0;         ///< since a host has joined
  int num_restarts = 0;         ///< used so far
};

struct JobLimits {
  int wanted_ranks = 1, min_ranks = 1;
  int wanted_hosts = 1, min_hosts = 1;
  int max_restarts = 0;      ///< new processes for failed ones; all at once, and a lost world, count as one
  double join_wait_s = 5;    ///< of the first world, for hosts beyond the least
  double silent_host_s = 4;  ///< after which the processes of a host count as failed, in a world that is lost
  double gone_host_s = 60;   ///< the same in any world
};

struct Decision {
  enum class Kind {
    kNone,
    kNextWorld,
    kAskForNext,  ///< ranks leave the present world in good order
    kStop,        ///< ranks save and end: hosts leave, and too few ranks would be left
    kEnd
  };
  Kind kind = Kind::kNone;
  wire::ElasticWorld next = {};
  int num_restarts = 0;  ///< that the next world uses
  wire::JobEnd end = {};
};

/// Hosts that live, do not leave, and take ranks.
int hosts_for_a_world(const JobView& view, const JobLimits& limits);

Decision decide(const JobView& view, const JobLimits& limits);

}  // namespace trireme::cli
