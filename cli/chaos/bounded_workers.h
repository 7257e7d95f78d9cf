#pragma once
// Workers that are processes, with a table whose staleness is bounded: each waits for the slowest. One of
// them can be killed, and what each had begun and was told of is read in memory that all share. Made while
// the calling process has one thread, since they are forks of it; they do nothing before start().

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/ps/client.h"

namespace trireme::cli {

class BoundedWorkers {
 public:
  explicit BoundedWorkers(int count);
  /// Kills those that are there.
  ~BoundedWorkers();
  BoundedWorkers(const BoundedWorkers&) = delete;
  BoundedWorkers& operator=(const BoundedWorkers&) = delete;

  int count() const { return static_cast<int>(children_.size()); }
  /// Of those that are there.
  std::vector<pid_t> pids() const;
  bool is_started() const { return is_started_; }
  void start(const std::string& coordinator);
  /// Steps that it has ended.
  std::uint64_t steps(int worker) const;
  void kill(int worker);
  /// Lets the others end their step and leave; waits.
  void stop();
  /// Empty when the table has exactly what was acknowledged, and of who was killed no more than was begun.
  std::string compare(ps::Client& client) const;

 private:
  struct Shared;
  [[noreturn]] void work(int worker);

  Shared* shared_;
  std::vector<pid_t> children_;  ///< 0: it has ended
  int killed_ = -1;
  bool is_started_ = false;
};

}  // namespace trireme::cli
