#pragma once
// Starts a program and collects what it prints; every wait has a deadline, and a child that is still there at
// the end of the test is killed with all its descendants (own process group).

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/paths.h"

namespace trireme::test {

struct ChildResult {
  int exit_code = -1;  ///< -1 when it was ended by a signal or the deadline
  int signal = 0;
  bool timed_out = false;
  std::string out;
  std::string err;
  double wall_s = 0;
};

class ChildProcess {
 public:
  /// `environment` is added to this process's; an empty value removes the variable.
  ChildProcess(const std::vector<std::string>& command,
               const std::map<std::string, std::string>& environment = {},
               const std::string& working_folder = "");
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  int pid() const { return pid_; }
  /// Process ids of the direct children at this moment.
  std::vector<int> children() const;
  /// True as soon as standard output or error holds the text; false at the deadline or when the child ended.
  bool wait_for_output(const std::string& text, double timeout_s);
  /// Standard output, as far as wait_for_output() has read it.
  const std::string& output() const;
  ChildResult wait(double timeout_s);
  /// After SIGSTOP it stands still.
  void send_signal(int signal);

 private:
  struct Reader;
  int pid_ = -1;
  double started_s_ = 0;
  std::unique_ptr<Reader> reader_;
};

/// Runs to the end.
ChildResult run(const std::vector<std::string>& command,
                const std::map<std::string, std::string>& environment = {}, double timeout_s = 120);

}  // namespace trireme::test
