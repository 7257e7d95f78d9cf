#pragma once
// A parameter server to be measured: a coordinator and servers as processes of their own, and how workers
// reach them.

#include <list>
#include <string>
#include <vector>

#include "bench/child.h"
#include "tests/support/certificates.h"
#include "trireme/wire/node_loop.h"

namespace trireme::bench {

/// How bytes get from one process to another, and what they prove.
struct Way {
  const char* name;
  bool tcp;
  wire::SharedMemoryUse memory;
  wire::Security::Kind security;
};
/// Throws InvalidArgument that lists those there are.
const Way& find_way(const std::string& name);
std::vector<std::string> way_names();

/// The same for every cluster of a run.
struct Surroundings {
  std::filesystem::path folder;
  test::Authority& authority;
  wire::Secret secret;
  int owner_threads = 1;
  double spin_s = -1;
  bool pinned = false;  ///< the first core is the workers', the second the servers'
};

struct ClusterShape {
  int num_servers = 1, num_replicas = 1;
};

class Cluster {
 public:
  /// Made while the process has one thread.
  Cluster(const Way& way, const ClusterShape& shape, const Surroundings& around);

  const wire::Address& coordinator() const { return coordinator_; }
  /// Of a worker of this cluster.
  wire::NodeLoopOptions worker_loop(int worker) const;
  bool pinned() const { return around_.pinned; }
  /// Of the processor, by all its processes so far.
  double cpu_s() const;

 private:
  wire::NodeLoopOptions loop_of(const std::string& role, int number) const;
  std::string socket_of(const std::string& who) const;

  const Way& way_;
  const Surroundings& around_;
  const std::filesystem::path folder_;
  wire::Address coordinator_;
  std::list<Child> processes_;
};

}  // namespace trireme::bench
