#pragma once
// Looks after the ranks of one world from their start to the end of the last one: relays their output,
// forwards signals, and when one fails, stops the others. One poll loop; not thread-safe.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/elastic_job.h"
#include "cli/launch/launcher.h"
#include "cli/launch/parameter_cluster.h"
#include "cli/launch/rank_process.h"
#include "cli/launch/report.h"
#include "cli/launch/screen.h"
#include "cli/launch/signal_queue.h"
#include "cli/launch/witness.h"
#include "trireme/telemetry/live_run.h"

namespace trireme::cli {

/// A rank, and what it writes.
struct SupervisedRank {
  std::unique_ptr<RankProcess> process;
  LineRelay out;
  LineRelay err;
  bool out_open = true;
  bool err_open = true;
  int frozen_by = 0;
  bool came_too_late = false;  ///< to the next world, or frozen too long: was killed
  double frozen_for_s = 0;     ///< as seen by a launcher that was not frozen itself
  bool stopped = false;
};

class Supervisor {
 public:
  /// Saves the evidence of a stall or a failure.
  using Keep = std::function<void(const autopsy::Evidence&)>;

  /// `servers`: of a parameter server, to be supervised as well; null: none. `job`: of elastic ranks; null:
  /// when a rank fails, the others are stopped.
  Supervisor(const LaunchOptions& options, Screen& screen, SignalQueue& signals, Notes& notes,
             const Keep& keep, ParameterCluster* servers = nullptr, ElasticJob* job = nullptr);

  /// Starts all the ranks; when one cannot be started, those before it are killed and the error is thrown.
  void start(const std::vector<RankStart>& starts);
  /// Looks after processes of the world before, in an elastic job, with the ranks of the present one.
  void adopt(std::vector<SupervisedRank> ranks);
  /// Those that live, after run() has returned with a next world.
  std::vector<SupervisedRank> release();
  /// Of an elastic job whose ranks have lost their world, and wait for this one; else nothing.
  const std::optional<wire::ElasticWorld>& next_world() const { return next_world_; }
  /// Those that were started, for readers of their status pages.
  std::vector<telemetry::LiveRank> ranks() const;
  /// Until all have ended.
  WorldStory run();

 private:
  using Member = SupervisedRank;
  enum class Phase { kRunning, kSettling, kRegrouping, kStopping, kInterrupted, kKilling };

  bool all_ended() const;
  bool is_over() const;
  void wait_and_relay(double timeout_s);
  void show_notes();
  void handle_signals();
  void look_after_ranks();
  void note_change(Member& member, RankProcess::Change change);
  void fail(const RankProcess& rank);
  void leave_as_unfit(const RankProcess& rank);
  void follow_job();
  std::vector<wire::MemberReport> member_reports() const;
  void begin_regrouping();
  void follow_end(const wire::JobEnd& end);
  void ask_ranks();
  void end_those_who_do_not_come();
  void end_spares();
  void look_for_stalls();
  void tell_cause();
  void look_after_servers();
  void look_after_the_frozen();
  void say_none_runs() const;
  void advance();
  void enter(Phase phase, double lasts_s);
  void pause();
  void interrupt(int signal);
  void stop_all(int signal);
  void drain();
  WorldStory story() const;

  const LaunchOptions& options_;
  Screen& screen_;
  SignalQueue& signals_;
  Notes& notes_;
  const Keep keep_;
  ParameterCluster* servers_;
  ElasticJob* job_;
  std::optional<wire::ElasticWorld> next_world_;
  int job_exit_code_ = 0;           ///< of an elastic job that has ended
  double all_but_some_wait_s_ = 0;  ///< for the next world, since when; 0: not yet
  int num_server_restarts_ = 0;
  std::vector<Member> members_;
  Witness witness_;
  double witnessed_s_ = 0;
  std::string told_cause_;
  Phase phase_ = Phase::kRunning;
  double phase_ends_s_ = 0;
  double started_s_ = 0;
  double looked_s_ = 0;  ///< after the frozen
  bool said_none_runs_ = false;
  int told_to_stop_ = 0;
  long oom_kills_before_ = 0;
};

}  // namespace trireme::cli
