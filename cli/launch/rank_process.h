#pragma once
// One rank as a process: started in a process group of its own, told to die with the launcher, its output in
// two pipes. Not thread-safe.

#include <memory>
#include <string>
#include <vector>

#include "trireme/base/file_descriptor.h"
#include "trireme/telemetry/status_page.h"
#include "trireme/wire/elastic_world.h"

namespace trireme::cli {

/// What all ranks of a world share when they are started, and what one of them gets.
struct RankStart {
  int rank = 0;                          ///< -1: a spare of an elastic job
  wire::ElasticMember member = {};       ///< of an elastic job
  std::string program;                   ///< a path
  std::vector<std::string> arguments;    ///< argv, the program's name first
  std::vector<std::string> environment;  ///< NAME=value, complete but for TRIREME_STATUS_FD
  bool inherits_stdin = false;           ///< else it reads /dev/null
};

class RankProcess {
 public:
  /// Throws InvalidArgument when the program cannot be executed, InternalError when there is no process, pipe
  /// or memory to be had.
  explicit RankProcess(const RankStart& start);
  /// Kills what is left of the process group.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return rank_; }
  bool is_spare() const { return rank_ < 0; }
  /// Of an elastic job, whose next world gives the process another rank; -1: none.
  void set_rank(int rank);
  const wire::ElasticMember& member() const { return member_; }
  void ask_for_generation(int generation) { page_->ask_for_generation(generation); }
  int pid() const { return pid_; }
  int out_fd() const { return out_.get(); }
  int err_fd() const { return err_.get(); }
  telemetry::Status status() const { return page_->read(); }
  std::shared_ptr<const telemetry::StatusPage> page() const { return page_; }

  /// To the whole process group.
  void send_signal(int signal) const;

  enum class Change { kNone, kStopped, kContinued, kEnded };
  /// What became of it since the last call; never waits. At its end its descendants are killed.
  Change look();

  bool ended() const { return ended_; }
  bool frozen() const { return stopped_by_ != 0; }
  int stopped_by() const { return stopped_by_; }  ///< the signal that froze it; 0: none
  int wait_status() const { return wait_status_; }
  double ended_s() const { return ended_s_; }  ///< on the monotonic clock

 private:
  int rank_;
  const wire::ElasticMember member_;
  int pid_ = -1;
  FileDescriptor out_, err_;
  std::shared_ptr<telemetry::StatusPage> page_;
  bool ended_ = false;
  int stopped_by_ = 0;
  int wait_status_ = 0;
  double ended_s_ = 0;
};

}  // namespace trireme::cli
