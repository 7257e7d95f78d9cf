#pragma once
// The leader of an elastic job, in the launcher of the first host: reads from the job's store what hosts
// report, decides (job_decision.h), and writes worlds and the state of the job there. Its calls of the store,
// which this process serves, end within seconds. Not thread-safe.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/launch/job_decision.h"
#include "trireme/wire/store_client.h"

namespace trireme::cli {

class ElasticLeader {
 public:
  /// `say`: for the launcher's output.
  ElasticLeader(wire::StoreClientOptions store, const JobLimits& limits,
                std::function<void(const std::string&)> say);

  /// Reads, decides and writes, where it is time: as often as the caller likes.
  void look();
  /// Whether launchers of other hosts still report.
  bool hears_others();
  /// The first launcher was told to stop: the ranks of all hosts save and end.
  void stop(int signal);

 private:
  /// What was read of a host, and when.
  struct Host {
    HostView view = {};
    double heard_s = 0;
  };
  void read_hosts(double at_s);
  void read_waiting();
  JobView view(double at_s) const;
  void carry_out(const Decision& decision);
  void begin(const wire::ElasticWorld& world);
  void end(const wire::JobEnd& end);
  void write_state();

  const JobLimits limits_;
  const std::function<void(const std::string&)> say_;
  wire::StoreClient store_;
  wire::ElasticWorld world_{.generation = -1};
  wire::JobState state_;
  std::map<int, Host> hosts_;
  std::map<std::string, wire::WaitingMember> waiting_;  ///< for the next world, as far as known
  std::vector<int> sizes_;  ///< of worlds, as the first process has said that waits
  bool is_lost_ = false;
  int num_restarts_ = 0;
  double looked_s_ = 0, joined_s_ = 0;
};

}  // namespace trireme::cli
