#pragma once
// Launchers, processes, stores and leader election of a simulated job (simulated_job.h).

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "simulated_job.h"

namespace trireme::cli {

struct SimulatedJob::Process {
  enum class Phase { kMeets, kTrains, kWaits };

  bool has_ended() const { return state != wire::MemberState::kRunning; }
  void end(int code, bool for_good) {
    exit_code = code;
    state = code == 0  ? wire::MemberState::kDone
            : for_good ? wire::MemberState::kFailedForGood
                       : wire::MemberState::kFailed;
  }

  std::string id;
  Phase phase = Phase::kMeets;
  wire::MemberState state = wire::MemberState::kRunning;
  int exit_code = 0;
  int generation = -1;  ///< of its world
  bool is_spare = false;
  bool has_state = false;       ///< of the training
  bool has_registered = false;  ///< in the store, as one that waits
  int asked = 0;                ///< generation of the world that its launcher asks it to come to
  int stop_signal = 0;
  double next_s = 0, since_s = 0, silent_since_s = 0;
  std::string cause, store;
};

struct SimulatedJob::Launcher {
  int number = 0;
  std::unique_ptr<Surroundings> surroundings;
  std::unique_ptr<ElasticJob> job;
  std::vector<std::unique_ptr<Process>> processes;
  Election* election = nullptr;  ///< of `job`
  double next_s = 0, elect_s = 0, stopped_until_s = 0;
  bool is_busy = false;  ///< in a call, which lasts
  bool has_joined = false, is_dead = false, is_over = false;
  bool is_told = false;  ///< SIGTERM
  bool leaves = false;
  double left_s = 0, late_since_s = 0;
  int stop_signal = 0;
  int exit_code = -1;
  std::string why;
};

struct SimulatedJob::Store {
  Launcher* server = nullptr;
  bool is_open = true;
  std::map<std::string, std::string> values{};
};

struct SimulatedJob::FormingWorld {
  wire::ElasticWorld world;
  std::set<std::string> met = {};
  bool is_formed = false, is_done = false, stops = false;
  double leave_s = 0;  ///< when its ranks leave it in good order; 0: they do not
  double trained_until_s = 0;
};

struct SimulatedJob::Etcd {
  bool is_down(double now_s) const { return now_s < down_until_s; }
  /// Renews the lease of the leader, or makes a candidate the leader.
  void elect(Launcher& launcher, double now_s);
  /// As of a process that ends.
  void release(Launcher& launcher, double now_s);

  double down_until_s = 0;
  Launcher* leader = nullptr;
  std::string address;  ///< of the leader
  double lease_until_s = 0;
  std::int64_t term = 0;
  int num_hosts = 0;
  std::map<std::string, std::string> agreed;
  std::optional<std::string> record, last_end;
};

class SimulatedJob::Election : public JobElection {
 public:
  Election(SimulatedJob& job, Launcher& launcher) : job_(job), launcher_(launcher) {}

  int claim_number() override;
  std::string agree(const std::string& name, const std::string& value) override;
  void campaign(const wire::Address& address) override;
  void stand_down() override;
  std::int64_t term() const override;
  wire::Address leader() const override { return seen_; }
  std::optional<std::string> load() override;
  void save(const std::string& record) override;
  void end(const std::string& how) override;
  std::optional<std::string> last_end() override;

 private:
  friend struct Etcd;
  void call() const;
  void call_as_leader() const;

  SimulatedJob& job_;
  Launcher& launcher_;
  std::string address_;       ///< as a candidate; empty: it is none
  std::string seen_;          ///< of the leader, as last read
  double holds_until_s_ = 0;  ///< its own lease, as far as it knows
  std::int64_t own_term_ = 0;
};

class SimulatedJob::Surroundings : public JobSurroundings {
 public:
  Surroundings(SimulatedJob& job, Launcher& launcher) : job_(job), launcher_(launcher) {}

  ElasticJobOptions options(const JobLimits& limits);
  /// A connection of a process to the store of which its launcher has written the address.
  std::unique_ptr<JobStore> of_process(Process& process);

  double now_s() override { return job_.now_s_; }
  void sleep(double seconds) override { job_.wait(launcher_, seconds); }
  std::unique_ptr<JobStore> connect(const wire::StoreClientOptions& store) override;
  bool listens(const wire::Endpoint& endpoint, double timeout_s) override;
  std::unique_ptr<ServedStore> serve(const wire::Endpoint& endpoint, const wire::Secret& secret,
                                     const Note& complain) override;
  std::unique_ptr<JobElection> election(const wire::Address& store, const Note& trouble) override;

 private:
  SimulatedJob& job_;
  Launcher& launcher_;
};

}  // namespace trireme::cli
