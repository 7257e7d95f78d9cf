#pragma once
// Serves a wire::Node over real sockets: one thread, the caller of run(), and epoll. Channels fail
// separately: bad bytes of a peer at worst close its channel, which is counted and reported.
//
// An exception from a callback of the node ends the service, because a state machine that was interrupted in
// a step may do anything. All channels are closed, and run() rethrows it. The loop can then serve another
// node. run() belongs to one thread at a time; post(), post_or_run(), stop(), counts() and addresses() to
// any.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/wire/frame.h"
#include "trireme/wire/node.h"
#include "trireme/wire/security.h"

namespace trireme::wire {

/// Whether channels between processes of one host go through shared memory.
enum class SharedMemoryUse { kWherePossible, kNever };

/// Listening addresses of a loop, its identity, and limits for peers.
struct NodeLoopOptions {
  std::vector<Address> listen = {};  ///< port 0 takes a free one; a Unix socket's folder is this user's alone
  Security security = {};
  PeerIdentity self = {};   ///< its identity for peers
  std::string folder = {};  ///< of the node's Disk; made when it is first used
  std::function<void(const std::string& line)> report = {};  ///< on the loop's thread
  /// Finds the address to connect to for an address whose scheme is none of the loop's. Called each time that
  /// a node connects, on a thread of its own, where it may wait. Throws an Error where there is none.
  std::function<Address(const Address&)> look_up = {};
  SharedMemoryUse shared_memory = SharedMemoryUse::kWherePossible;  ///< between ends of a Unix socket
  std::size_t ring_bytes = 1 << 20;  ///< each way, of a channel; a power of two
  FrameLimits limits = {};
  std::int64_t chunk_bytes = 1 << 20;
  std::int64_t age_bytes = 4 << 20;            ///< see docs/wire.md, "Priorities"
  std::int64_t max_waiting_bytes = 2LL << 30;  ///< of one channel; beyond, the peer is too slow
  std::size_t max_pooled_bytes = 256 << 20;    ///< kept for messages to come
  double handshake_s = 5;
  double connect_s = 10;
  double patience_s = 60;  ///< for a peer that takes no waiting bytes, or leaves a frame half sent
  /// Strangers are accepted connections in the handshake. Guests are open, and their peer is no member yet:
  /// no message went either way or, with node_registers, until Network::register_peer(). So many of each
  /// there may be; then of the network address that has most of them the oldest makes room. 0: an eighth of
  /// the descriptors that the process may have, at most 512.
  int max_strangers = 0;
  double guest_s = 30;          ///< after which a guest is closed
  bool node_registers = false;  ///< the node decides which peers are members
  /// Maximum of accepted connections. Above it, a guest is closed. Without guests, a peer with more than 16
  /// connections loses the one without messages for longest. Otherwise the new one is closed. 0: 15 of 16
  /// descriptors.
  int max_accepted = 0;
  double spin_s = -1;  ///< before it sleeps; below zero: 50 us on a host of four cores and more, else none
};

/// Counts so far, by name: "channels opened", "rejected: wrong secret", "bad frame: magic".
using ChannelCounts = std::map<std::string, std::uint64_t>;

class NodeLoop {
 public:
  /// Listens from now on. Throws InvalidArgument (an address that others reach, without a proof) and
  /// CommError (an address that is taken).
  explicit NodeLoop(NodeLoopOptions options);
  ~NodeLoop();
  NodeLoop(const NodeLoop&) = delete;
  NodeLoop& operator=(const NodeLoop&) = delete;

  /// Where it listens, with the ports that it got.
  const std::vector<Address>& addresses() const;
  /// Until stop(), or an exception of the node. All channels are closed when it returns.
  void run(Node& node);
  /// Ends run(), also the next one if none is under way.
  void stop();
  /// Runs on the loop's thread, between two callbacks of the node; while no run() is under way, in the next.
  void post(std::function<void()> work);
  /// The same, but at once and on the calling thread where the loop sleeps, which continues sleeping: a
  /// message is then sent without waking another thread. `work` may use functions of the node that call
  /// nothing back: sending and timers. Not before earlier posts of this thread.
  void post_or_run(std::function<void()> work);
  ChannelCounts counts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::wire
