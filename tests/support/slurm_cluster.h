#pragma once
// A Slurm cluster of two nodes, `one` and `two`, on this machine: munged, slurmctld and two slurmd. Their
// configuration, key, sockets and state are in a temporary folder. They run in their own namespaces
// (processes, network, mounts, host name), separate from any other cluster. All of them, and every job, end
// with the object and with the test. Needs root. Not thread-safe.

#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace trireme::test {

class SlurmCluster {
 public:
  SlurmCluster();
  ~SlurmCluster();
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  /// Empty if the cluster is up.
  const std::string& unavailable_because() const { return unavailable_because_; }
  /// For runs and output of jobs. Both nodes see it.
  const std::filesystem::path& folder() const { return folder_.path(); }
  /// The command as typed on node one, in folder(), with this build's programs in the PATH.
  std::vector<std::string> typed(const std::vector<std::string>& command) const;
  /// Runs the command and returns its standard output without the last newline. Throws std::runtime_error if
  /// it fails.
  std::string say(const std::vector<std::string>& command) const;

 private:
  std::string start();

  TemporaryFolder folder_;
  std::unique_ptr<ChildProcess> daemons_;
  int init_ = 0;  ///< the first process of their namespace
  std::string unavailable_because_;
};

}  // namespace trireme::test
