#pragma once
// The processes of a parameter server on this host, as children: a coordinator and servers, which end with
// whoever started them. For `--servers N`, for tests and for benchmarks that kill them. One thread: the one
// that makes it has to live as long as it does, because the children end with that thread.

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme::cli {

/// Between its processes and workers, which are all of this host.
enum class ClusterLinks {
  kSharedMemory,  ///< rings behind Unix sockets without files
  kTcp,           ///< on loopback
};

struct ParameterClusterOptions {
  int num_servers = 2;
  int num_replicas = 2;     ///< of a partition; fewer servers hold fewer
  int num_partitions = 64;  ///< a power of two
  ClusterLinks links = ClusterLinks::kSharedMemory;
  std::filesystem::path folder = {};          ///< of the coordinator; its name is unique
  std::vector<std::string> environment = {};  ///< NAME=value, in place of what is inherited
  std::vector<std::string> server_options = {};
};

class ParameterCluster {
 public:
  /// Starts all of them and returns when the coordinator serves. Throws InvalidArgument, CommError.
  explicit ParameterCluster(ParameterClusterOptions options);
  /// Kills those that are there.
  ~ParameterCluster();
  ParameterCluster(const ParameterCluster&) = delete;
  ParameterCluster& operator=(const ParameterCluster&) = delete;

  /// Of the coordinator, also of one that is started again.
  const std::string& address() const { return address_; }

  /// Under its name, which is that of its number; one that has ended before is replaced.
  void start_server(int number, const std::vector<std::string>& more_options = {});
  void start_coordinator();
  static constexpr int kCoordinator = -1;
  /// To a server, or kCoordinator. After SIGKILL it has ended when this returns.
  void send_signal(int number, int signal);
  /// Numbers of those that have ended by themselves since the last call.
  std::vector<int> ended();
  /// Numbers of the servers that run.
  std::vector<int> servers() const;
  /// Of all that run, the coordinator too.
  const std::map<int, pid_t>& processes() const { return children_; }
  pid_t pid_of(int number) const { return children_.at(number); }

 private:
  void start(int number, const std::vector<std::string>& words);
  std::string listen_address(const std::string& name) const;

  const ParameterClusterOptions options_;
  std::string address_;
  std::map<int, pid_t> children_;
};

}  // namespace trireme::cli
