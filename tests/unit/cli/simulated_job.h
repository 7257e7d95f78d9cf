#pragma once
// An elastic job in one thread and with a virtual clock: its launchers (the real ElasticJob, ElasticHost and
// ElasticLeader), stores, leader election, and processes. Faults strike at random times. One seed gives one
// run. ElasticJob waits in calls; the other launchers and the processes run meanwhile.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cli/launch/elastic_job.h"

namespace trireme::cli {

struct SimulatedJobOptions {
  std::uint64_t seed = 0;
  bool has_etcd = true;  ///< else the first launcher serves the store, and its loss ends the job
  bool prints = false;   ///< every event, to stderr
};

class SimulatedJob {
 public:
  explicit SimulatedJob(const SimulatedJobOptions& options);
  ~SimulatedJob();

  /// Until all launchers have ended. Empty: every promise was kept; else the first that was not.
  std::string run();
  /// Worlds that were formed, and faults that struck.
  int num_worlds() const { return num_worlds_; }
  int num_faults() const { return num_faults_; }

 private:
  struct Process;
  struct Launcher;
  struct Store;
  struct FormingWorld;
  struct Etcd;
  class Surroundings;
  class StoreClient;
  class Election;
  enum class Fault { kKillProcess, kFailForGood, kKillLauncher, kStopLauncher, kLeave, kInterrupt, kJoin, kEtcdOutage };
  /// Unwinds the call of a launcher that was killed.
  struct Killed {};

  double random(double from, double to) { return std::uniform_real_distribution(from, to)(rng_); }
  bool happens(double probability) { return random(0, 1) < probability; }
  void print(const std::string& line);
  void fail(const std::string& promise);

  void plan_faults();
  void strike(Fault fault);
  Launcher* some_launcher(const std::function<bool(const Launcher&)>& fits);
  void add_launcher();
  int num_hosts_left() const;
  bool waits_for_hosts() const;
  void kill(Launcher& launcher);

  void run_until(double end_s);
  void wait(Launcher& caller, double seconds);
  void step(Launcher& launcher);
  void look_after_job(Launcher& launcher);
  void enter_next_world(Launcher& launcher);
  void kill_late_processes(Launcher& launcher);
  void end_processes(Launcher& launcher, int exit_code);
  void admit_none();
  void say_goodbye(Launcher& launcher);

  void step(Launcher& launcher, Process& process);
  void meet(Launcher& launcher, Process& process);
  void train(Launcher& launcher, Process& process);
  void wait_for_world(Launcher& launcher, Process& process);
  void lose(Process& process, const std::string& cause);
  void begin(const Launcher& launcher, Process& process, const wire::ElasticWorld& world);
  void check_state(const FormingWorld& world);
  Process* find(const std::string& id);
  bool lives(const std::string& id);
  void check_end();

  const SimulatedJobOptions options_;
  std::mt19937_64 rng_;
  double now_s_ = 1000;
  std::vector<std::unique_ptr<Launcher>> launchers_;
  std::map<std::string, std::shared_ptr<Store>> stores_;  ///< by address
  std::map<int, FormingWorld> worlds_;
  std::unique_ptr<Etcd> etcd_;
  std::deque<std::pair<double, Fault>> faults_;
  JobLimits limits_;
  double needed_s_ = 0, trained_s_ = 0;  ///< of work in all
  double last_fault_s_ = 0;
  int next_port_ = 1, num_worlds_ = 0, num_faults_ = 0;
  bool may_fail_ = false;   ///< a fault struck that may end the job with an error
  bool has_ended_ = false;  ///< the job, as a launcher has read
  std::string broken_;
};

}  // namespace trireme::cli
