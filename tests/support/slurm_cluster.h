#pragma once
// A Slurm cluster of two nodes, `one` and `two`, on this machine: munged, slurmctld and two slurmd, with
// their configuration, key, sockets and state in a temporary folder. They run in namespaces of their own
// (processes, network, mounts, host name), so that they meet no other cluster and all of them, and every job,
// end with the object, and with the test, however that ends. Needs root. Not thread-safe.

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

  /// Empty when the cluster is up.
  const std::string& unavailable_because() const { return unavailable_because_; }
  /// For runs and what jobs say; on both nodes.
  const std::filesystem::path& folder() const { return folder_.path(); }
  /// The command as somebody types it on node one, in folder(), with this build's programs in the PATH.
  std::vector<std::string> typed(const std::vector<std::string>& command) const;
  /// Its standard output without the last newline; throws std::runtime_error when it fails.
  std::string say(const std::vector<std::string>& command) const;

 private:
  std::string start();

  TemporaryFolder folder_;
  std::unique_ptr<ChildProcess> daemons_;
  int init_ = 0;  ///< the first process of their namespace
  std::string unavailable_because_;
};

}  // namespace trireme::test
