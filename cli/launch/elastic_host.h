#pragma once
// A host of an elastic job, in its launcher: reports its processes to the leader, and reads worlds and the
// state of the job, all in the job's store. Not thread-safe.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/launch/job_surroundings.h"
#include "trireme/wire/elastic_world.h"
#include "trireme/wire/store_client.h"

namespace trireme::cli {

class ElasticHost {
 public:
  /// `node`: a number that no other host of the job has had. `patience_s`: for a store that does not answer.
  /// Throws CommError.
  ElasticHost(JobSurroundings& surroundings, const wire::StoreClientOptions& store, int node, int capacity,
              double patience_s);

  /// The number of this host.
  int node() const { return node_; }
  const wire::Endpoint& store() const { return store_->endpoint(); }
  /// The job has another store now. Throws CommError, after which the old one is used.
  void move_to(const wire::StoreClientOptions& store);
  /// An id for a spare of this host.
  wire::ElasticMember new_spare();
  /// The present one, of generation -1 before the first.
  const wire::ElasticWorld& world() const { return world_; }
  void enter(const wire::ElasticWorld& world);
  /// A process of this host has reached the steps of a training.
  void note_training() { has_trained_ = true; }
  /// Whether this host has joined a job that runs: it has ranks, none of them has trained, and other hosts
  /// have older ones.
  bool has_just_joined() const;

  /// Each call reports, if the report has changed or is due, and reads what has changed. False: the store has
  /// not answered for some seconds, and the job is over.
  bool exchange(std::vector<wire::MemberReport> members);
  const wire::JobState& job() const { return job_; }
  /// The job has ended on the other hosts, and its store is gone.
  void learn_end(const wire::JobEnd& end) { job_.end = end; }
  /// The one after the present one, once the leader has formed it.
  const std::optional<wire::ElasticWorld>& next_world() const { return next_; }
  /// Whether a rank of the present world has lost it, so that all of them have to come to the next one.
  bool is_lost() const { return is_lost_; }

  /// Ranks that still come to the rendezvous of the present world are told to give up.
  void give_up(const std::string& cause);
  /// Whether that process waits for the next world. Asked until it does, then remembered.
  bool waits(const std::string& id);

  /// Its launcher was told to stop: its processes leave the job.
  void leave();
  bool is_leaving() const { return report_.is_leaving; }
  double left_s() const { return left_s_; }  ///< when, on the monotonic clock

 private:
  void join(JobStore& store) const;
  void write_report(double at_s);
  void read_job();
  template <class Call>
  void call(const Call& call);

  JobSurroundings& surroundings_;
  std::unique_ptr<JobStore> store_;
  const int node_;
  const double patience_s_;
  int num_spares_ = 0;
  wire::ElasticWorld world_{.generation = -1};
  bool has_trained_ = false;
  std::optional<wire::ElasticWorld> next_;
  wire::JobState job_;
  bool is_lost_ = false;
  std::set<std::string> waiting_;  ///< for the next world
  wire::HostReport report_;
  double reported_s_ = 0, read_s_ = 0, silent_since_s_ = 0, left_s_ = 0;
};

}  // namespace trireme::cli
