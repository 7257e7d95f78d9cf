#pragma once
// The leader of an elastic job, in the launcher that serves the job's store: reads there what hosts report,
// decides (job_decision.h), and writes worlds and the state of the job. Its calls of the store end within
// seconds. Not thread-safe.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/launch/job_decision.h"
#include "cli/launch/job_surroundings.h"
#include "trireme/wire/store_client.h"

namespace trireme::cli {

/// What a leader leaves to its successor.
struct JobRecord {
  int leader = 0;  ///< the host that has written it
  wire::ElasticWorld world{.generation = -1};
  int num_restarts = 0;
  std::map<int, int> num_placed = {};  ///< by host: processes that worlds have started there so far
};
std::string to_text(const JobRecord& record);
/// Throws CommError for a text that is none.
JobRecord parse_job_record(const std::string& text);

struct ElasticLeaderOptions {
  wire::StoreClientOptions store;
  int node = 0;  ///< of this launcher's host
  JobLimits limits = {};
  std::function<void(const std::string&)> say;  ///< for the launcher's output
  /// Whether no other launcher may lead. While one may, the job only ends where all ranks are done.
  std::function<bool()> leads = [] { return true; };
  /// Saves the record before a world is published. Throws CommError, and then it is not published.
  std::function<void(const JobRecord&)> save = [](const JobRecord&) {};
  JobSurroundings& surroundings = real_surroundings();
};

class ElasticLeader {
 public:
  explicit ElasticLeader(ElasticLeaderOptions options);

  /// Continues the job of a leader that is gone, in a store of its own. Ranks leave the present world, whose
  /// store is lost, for the next one.
  void take_over(const JobRecord& record);

  /// Reads, decides and writes, where it is time: as often as the caller likes.
  void look();
  /// Whether launchers of other hosts still report.
  bool hears_others();
  /// This launcher was told to stop: the ranks of all hosts save and end.
  void stop(int signal);

 private:
  /// What was read of a host, and when.
  struct Host {
    HostView view = {};
    double heard_s = 0;
    bool has_reported = false;  ///< to this leader; the leader before may have known it
    double silent_s(double at_s, const JobLimits& limits) const;
  };
  void say_if_hosts_are_missing(const JobView& view);
  void read_hosts(double at_s);
  void read_waiting();
  JobView view(double at_s) const;
  void carry_out(const Decision& decision);
  void begin(const wire::ElasticWorld& world, int num_restarts);
  void end(const wire::JobEnd& end);
  void write_state();

  const ElasticLeaderOptions options_;
  std::unique_ptr<JobStore> store_;
  wire::ElasticWorld world_{.generation = -1};
  wire::JobState state_;
  std::map<int, Host> hosts_;
  std::map<std::string, wire::WaitingMember> waiting_;  ///< for the next world, as far as known
  std::vector<int> sizes_;        ///< of worlds, as the first process has said that waits
  std::set<int> asked_to_leave_;  ///< hosts that were leaving when the ranks were asked for the next world
  bool is_lost_ = false;
  bool is_taken_over_ = false;  ///< the present world is of the leader before
  int said_hosts_ = -1;         ///< that a world lacks
  int num_restarts_ = 0;
  double looked_s_ = 0, joined_s_ = 0;
};

}  // namespace trireme::cli
