#pragma once
// The part of one launcher in an elastic job: its host, the leader while this launcher leads, and the store
// that the launchers and ranks of the job use. The store is that of the first host. With etcd each launcher
// serves one, and the job uses that of the leader, so that the job survives the loss of any host. Not
// thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/elastic_host.h"
#include "cli/launch/elastic_leader.h"
#include "cli/launch/job_surroundings.h"
#include "cli/launch/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::cli {

struct ElasticJobOptions {
  int capacity = 1;  ///< ranks that this host takes
  JobLimits limits = {};
  wire::Secret secret = {};
  wire::Endpoint store = {};                     ///< without etcd: of the first host
  bool is_first = false;                         ///< without etcd: this host is the first, and leads
  wire::Address rendezvous = {};                 ///< etcd://..., or empty
  std::string address = {};                      ///< with etcd: of this host; empty: the one that faces etcd
  int port = 0;                                  ///< with etcd: of the store of this host; 0: a free one
  std::string start_id = {};                     ///< of this start, if it is the first of the job
  std::function<void(const std::string&)> say;   ///< for the launcher's output
  std::function<void(const std::string&)> note;  ///< the same, from any thread
  /// The signal to stop that came while it waits for etcd and the leader; 0: none.
  std::function<int()> stop_signal = [] { return 0; };
  JobSurroundings& surroundings = real_surroundings();
};

/// The launcher was told to stop before it was in the job.
class ToldToStop : public CommError {
 public:
  ToldToStop(int stop_signal, const std::string& message) : CommError(message), signal(stop_signal) {}
  const int signal;
};

class ElasticJob {
 public:
  /// Joins the job. Throws ToldToStop, CommError, InvalidArgument.
  explicit ElasticJob(ElasticJobOptions options);
  ElasticJob(const ElasticJob&) = delete;
  ElasticJob& operator=(const ElasticJob&) = delete;

  ElasticHost& host() { return *host_; }
  const ElasticHost& host() const { return *host_; }
  /// Of the job, the same on all hosts.
  const std::string& start_id() const { return start_id_; }
  /// A file with the address of the store, which is written again when the job has another one; empty: it
  /// has the same from the start to the end.
  std::string store_file() const;

  /// Reports to the leader, follows the job, and leads it where that is this launcher's part. False: the
  /// store has not answered for too long, and the job is over.
  bool exchange(std::vector<wire::MemberReport> members);
  /// Why exchange() has returned false.
  std::string why_over() const;

  /// Whether the job continues without this host: another launcher leads, or can.
  bool can_leave() const;
  /// This host has left the job, and another launcher may lead.
  void hand_over();
  /// This launcher was told to stop: if it leads, the ranks of all hosts save and end.
  void stop(int signal);
  /// Whether launchers of other hosts still report to this one.
  bool hears_others();
  /// The job has ended on all hosts that answer. `exit_code`: of this launcher, for a job that has no end
  /// yet.
  void finish(int exit_code);

 private:
  wire::StoreClientOptions store_at(const wire::Endpoint& endpoint) const;
  std::unique_ptr<JobStore> reach_first(const wire::StoreClientOptions& store) const;
  int claim_number();
  void check_secret() const;
  void give_up_if_told() const;
  void serve_own_store();
  void join_leader(int node);
  void follow_leader();
  void begin_to_lead(std::int64_t term);
  bool is_over_without_record();
  void take_over(const JobRecord& record);
  void start_over();
  void use(const wire::Endpoint& store);
  void write_store_file();
  void make_leader(const wire::Endpoint& store);
  template <class Call>
  void or_later(const Call& call);
  template <class Call>
  void try_to_lead(const Call& call);
  bool waits_in_vain();

  const ElasticJobOptions options_;
  std::unique_ptr<TemporaryFolder> folder_;  ///< with etcd: of the store's address
  std::unique_ptr<ServedStore> own_store_;   ///< with etcd
  std::unique_ptr<JobElection> leadership_;  ///< with etcd; ends before the store
  std::string start_id_;
  std::optional<ElasticHost> host_;
  std::optional<ElasticLeader> leader_;  ///< while this launcher leads
  std::int64_t term_ = 0;                ///< with etcd: in which this launcher leads, or has led
  std::optional<std::string> saved_;     ///< with etcd: the record of the job, by this launcher
  bool has_lost_record_ = false;         ///< of the job: etcd has neither its record nor its end
  bool cannot_lead_ = false;             ///< as the leader: the last attempt to read, decide and write failed
  std::string trouble_;                  ///< the last that was told
  double waits_since_s_ = 0;
  double write_again_s_ = 0;  ///< the file with the store's address
};

}  // namespace trireme::cli
