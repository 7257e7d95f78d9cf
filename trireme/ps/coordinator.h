#pragma once
// The coordinator: membership, and the place and epoch of each partition. It is on no data path while nothing
// changes: data transfers continue without it, and it recovers its state from disk. A server is down when no
// heartbeat came for a lease, or when its connection closed and its address does not answer. All calls come
// on the thread of its surroundings.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trireme/ps/cluster_map.h"
#include "trireme/ps/status.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

/// Of a cluster: how it is divided, and when its members count as lost.
struct CoordinatorOptions {
  std::uint32_t num_partitions = 4096;  ///< a power of two; of a new cluster
  std::uint32_t num_replicas = 2;
  std::uint32_t first_servers = 1;  ///< partitions are first placed when so many are there
  std::string placement = "bounded-rendezvous";
  double lease_s = 2;
  double silence_s = 2.5;  ///< of a member that is then down; above lease_s
  double gone_s = 60;      ///< of a server that is then removed with its state
  double tick_s = 0.1;
  double gather_s = 0.01;                            ///< changes that come together become one
  std::function<NamedCounts()> channel_counts = {};  ///< of the loop that serves it, for its status
};

class Coordinator final : public wire::Node {
 public:
  /// Throws InvalidArgument for options that cannot work.
  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator() override;

  const ClusterMap& map() const;
  /// Whether every partition is where placement wants it, with nothing under way.
  bool is_settled() const;
  ClusterStatus status() const;

  /// Throws DataError when its disk holds something damaged.
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
