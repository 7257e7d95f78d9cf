#pragma once
// A node's line to the coordinator: heartbeats that register it and keep its lease, the map, and connecting
// again: also to a coordinator that does not answer, since another may have taken over at that address.
// Changes of the map are passed to its owner. One thread; part of a Server or a ClientNode.

#include <cstdint>
#include <functional>
#include <optional>

#include "trireme/ps/cluster_map.h"
#include "trireme/ps/messages.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

class Membership {
 public:
  Membership(wire::Address coordinator, double heartbeat_s)
      : coordinator_(std::move(coordinator)), heartbeat_ns_(static_cast<std::int64_t>(heartbeat_s * 1e9)) {}

  void start(wire::Surroundings& surroundings) {
    surroundings_ = &surroundings;
    tick_ns_ = surroundings.now_ns();
  }
  /// Once in a while, and at once when a map is wanted: sends a heartbeat when it is time for one.
  void on_tick(const std::function<Heartbeat()>& heartbeat);
  void beat_soon() { beat_ns_ = 0; }
  /// Whether the connection is the coordinator's, and the event was taken.
  bool on_connected(wire::ConnectionId connection);
  bool on_closed(wire::ConnectionId connection);
  bool is_coordinator(wire::ConnectionId connection) const { return connection_ == connection; }
  void send(wire::Message message);

  /// Takes a message of the coordinator that every member gets. The result has whether the map changed.
  enum class Taken : std::uint8_t { kNo, kReply, kMap, kMalformed };
  Taken take(const wire::Message& message);

  const ClusterMap& map() const { return map_; }
  /// The change of kMap.
  const MapChange& last_change() const { return last_change_; }
  /// The coordinator's last reply to this node.
  const HeartbeatReply& last_reply() const { return last_reply_; }
  std::int64_t lease_until_ns() const { return lease_until_ns_; }

 private:
  std::int64_t patience_ns() const;

  wire::Address coordinator_;
  std::int64_t heartbeat_ns_;
  wire::Surroundings* surroundings_ = nullptr;
  wire::ConnectionId connection_ = 0;
  bool is_connected_ = false;
  std::int64_t beat_ns_ = 0;  ///< when the next is due
  std::int64_t tick_ns_ = 0;
  std::int64_t silence_ns_ = 0;  ///< of the coordinator, as long as this node was awake
  int num_silent_ = 0;           ///< connections, one after the other, on which nothing came
  ClusterMap map_;
  MapChange last_change_;
  HeartbeatReply last_reply_;
  std::int64_t lease_until_ns_ = 0;
};

}  // namespace trireme::ps
