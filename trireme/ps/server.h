#pragma once
// A server of the parameter server: the partitions that the map gives it, in one node. It keeps nothing on
// disk; the other servers of each chain have copies of its state. All calls but report() come on the thread
// of its surroundings. Partitions are on separate threads (owner_threads), which end with the server.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "trireme/ps/ids.h"
#include "trireme/ps/part_sink.h"
#include "trireme/ps/status.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

/// The server's identity, its cluster, and its resources.
struct ServerOptions {
  std::string name;       ///< of the place: unique in the cluster
  std::string host;       ///< replicas of a partition are put on different ones
  wire::Address address;  ///< where others find it
  wire::Address coordinator;
  double weight = 1;
  double heartbeat_s = 0.2;
  double tick_s = 0.05;
  double retry_s = 0.3;
  double suspect_s = 1.5;
  double confirmed_s = 2;
  double copy_bytes_per_s = 200e6;  ///< to learners, in the background
  int owner_threads = 0;            ///< that partitions live on; 0: the thread of the surroundings
  std::function<NamedCounts()> channel_counts = {};                     ///< of the loop that serves it, for
                                                                        ///< its status
  std::function<std::unique_ptr<PartSink>()> parts = parts_below(".");  ///< where checkpoints are written
  std::size_t most_queued = 4096, most_queued_bytes = 64 << 20;  ///< for one of them; then connections wait
};

/// Counts since the start.
struct ServerCounts {
  std::uint64_t rejected = 0;      ///< messages that no correct peer sends
  std::uint64_t bytes_copied = 0;  ///< to learners
  std::uint64_t pauses = 0;        ///< of connections, because partitions were not quick enough
  std::uint64_t done_at_once = 0;  ///< short requests, on the loop's thread where the partition's slept
};

/// A server's copy of one partition.
struct ReplicaReport {
  bool holds_all = false, is_primary = false;
  Epoch epoch = 0;
  Version version = 0;
  std::uint64_t digest = 0;
};

/// A server's part of the cluster's map.
struct ServerHoldings {
  std::size_t partitions = 0;  ///< of whose chain it is a part, or which it learns
  std::size_t alone = 0;       ///< of these, without another server in the chain
  bool has_tables = false;     ///< whether the cluster has any, so that these may hold values
};

class Server final : public wire::Node {
 public:
  explicit Server(ServerOptions options);
  ~Server() override;

  /// Gives everything away, then is released: see is_released(). Idempotent.
  void leave();
  bool is_released() const;
  ServerHoldings holdings() const;
  ServerCounts counts() const;
  /// `done` is called later, on the thread of its surroundings. Concurrent queries get the same answer.
  void ask_status(std::function<void(const ServerStatus&)> done);

  /// For comparing replicas; holds_all is false where there is none. From any thread, while it serves.
  ReplicaReport report(PartitionId partition) const;

  void on_start(wire::Surroundings& surroundings) override;
  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) override;
  void on_message(wire::ConnectionId connection, wire::Message message) override;
  void on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string& reason) override;
  void on_timer(wire::TimerId timer) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::ps
