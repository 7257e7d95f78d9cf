#pragma once
// Starts a program and collects its output. Every wait has a deadline. A child that still runs at the end of
// the test is killed with all its descendants (own process group).

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/paths.h"

namespace trireme::test {

struct ChildResult {
  int exit_code = -1;  ///< -1 if a signal or the deadline ended it
  int signal = 0;
  bool timed_out = false;
  std::string out;
  std::string err;
  double wall_s = 0;
};

class ChildProcess {
 public:
  /// `environment` is added to that of this process. An empty value removes the variable.
  ChildProcess(const std::vector<std::string>& command,
               const std::map<std::string, std::string>& environment = {},
               const std::string& working_folder = "");
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  int pid() const { return pid_; }
  /// Process ids of the direct children at this moment.
  std::vector<int> children() const;
  /// Returns true as soon as standard output or error contains the text, and false at the deadline or after
  /// the end of the child.
  bool wait_for_output(const std::string& text, double timeout_s);
  /// The standard output that wait_for_output() has read so far.
  const std::string& output() const;
  ChildResult wait(double timeout_s);
  /// SIGSTOP returns after the child has stopped.
  void send_signal(int signal);

 private:
  struct Reader;
  int pid_ = -1;
  double started_s_ = 0;
  std::unique_ptr<Reader> reader_;
};

/// Runs the program to its end.
ChildResult run(const std::vector<std::string>& command,
                const std::map<std::string, std::string>& environment = {}, double timeout_s = 120);

}  // namespace trireme::test
