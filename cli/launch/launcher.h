#pragma once
// Starts the ranks of a program on this host, supervises them, and reports the result. No torch. Everything
// happens in one poll loop (supervisor.cpp), except for the store of the ranks' rendezvous. The store has a
// thread, so that neither a slow terminal nor the end of a rank delays it. Not thread-safe; one launcher per
// process. A rank is a separate process group, which the kernel kills when this process ends. So neither kill
// -9 of a rank nor of the launcher leaves processes.

#include <optional>
#include <string>
#include <vector>

namespace trireme::cli {

struct LaunchOptions {
  std::vector<std::string> command;  ///< program and arguments; found in PATH like a shell does
  int num_ranks = 1;                 ///< on this host
  int num_nodes = 1;                 ///< of an elastic job: the most
  int min_nodes = 0;                 ///< of an elastic job: hosts with which it starts; 0: num_nodes
  int node_rank = 0;
  std::string master_addr;  ///< empty: 127.0.0.1
  int master_port = 0;      ///< where the launcher of the first host serves the store; 0: a free one
  std::string rendezvous;   ///< of an elastic job: etcd://..., in place of a first host; empty: none
  std::string local_addr;   ///< with rendezvous: of this host, for the others; empty: the one that faces etcd
  std::string secret_file;  ///< with the job's secret; empty: the environment's, or, on one host, a new one
  int num_servers = 0;      ///< of a parameter server, on this host; restarted when they end
  int max_restarts = 0;     ///< of all ranks; of an elastic job also: processes that replace others
  bool elastic = false;     ///< ranks that survive a failure keep running (comm/elastic.h)
  int min_ranks = 0;        ///< of an elastic job: fewest ranks of a world; 0: min_nodes * num_ranks
  double join_wait_s = 5;   ///< of an elastic job: for hosts beyond min_nodes, before the first world
  int num_spares = 0;       ///< of an elastic job: processes that wait for a rank from the start
  double frozen_grace_s = 60;     ///< how long all ranks that are left may be frozen; 0: without end
  double settle_s = 1;            ///< after a first rank failed: time for the others to say why they fail too
  double stop_grace_s = 5;        ///< between SIGTERM and SIGKILL when the others are stopped
  double interrupt_grace_s = 30;  ///< the same after Ctrl-C: time for a checkpoint
  bool prefix_output = true;      ///< "[rank] " before each line
  std::string autopsy_folder;  ///< where the evidence of a failure is written, if it is there; empty: nowhere
  std::optional<int>
      metrics_port;  ///< for Prometheus, of the ranks of this host; 0: a free one; none: no port
  std::string metrics_address = "127.0.0.1";
  std::string metrics_token_file;  ///< made where it is missing; empty: a token of this start, printed
};

/// Runs until all ranks have ended. Returns 0, else the exit code that explains the end: that of the first
/// rank that failed, 3 when it was killed by a signal, 128 + signal when this launcher was told to stop. The
/// report on standard error names the rank, its signal or exit code, and its last action and operation.
/// Throws InvalidArgument: no such program, no rank, several nodes without a fixed address and port, or
/// without a secret; CommError: the port is taken.
int launch(const LaunchOptions& options);

}  // namespace trireme::cli
