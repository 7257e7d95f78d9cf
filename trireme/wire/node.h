#pragma once
// A participant of a protocol, as a state machine: it gets events and answers through its Surroundings only.
// It takes its clock, its random numbers, its disk and its network from there. So the same code runs over
// sockets and, by a seed, in one thread under virtual time over a network and a disk that fail. Nothing here
// blocks. All calls of one node come one at a time, on one thread; a node never calls into another.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/wire/message.h"

namespace trireme::wire {

/// Where a node is found: "tcp:HOST:PORT", "unix:PATH", "unix:@NAME" (no file), "inproc:NAME". Ranks of one
/// host that meet at a Unix socket may continue over shared memory; that changes nothing here.
using Address = std::string;
/// Whether it has one of these forms: an address from a peer may be any text.
bool is_address(const Address& text);

/// Of one node, and never given twice by it.
using ConnectionId = std::uint64_t;
using TimerId = std::uint64_t;

/// The authenticated identity of a peer, before its first message is passed on.
struct PeerIdentity {
  std::string role;  ///< "worker", "server", "coordinator", ...; empty where nothing is asked for
  std::string name;  ///< in its role: "3"
};

/// Why there is no connection any more.
enum class CloseCause : std::uint8_t {
  kByPeer,       ///< it closed, ended or died
  kUnreachable,  ///< no process listens there, or no answer came in time
  kRefused,      ///< either side did not accept the other's identity
  kBadFrame,     ///< bytes that are not of this protocol
  kTooSlow,      ///< the peer has taken nothing for too long
  kSilent,       ///< its host took the connection, its process did not answer in time: it may be frozen
};

/// Connections of a node to others, and messages on them.
class Network {
 public:
  virtual ~Network() = default;
  /// on_connected or on_closed follows, never from within this call.
  virtual ConnectionId connect(const Address& address) = 0;
  /// Messages of one connection and one priority arrive in the order of sending, once, as long as it is open.
  /// When it closes, it is unknown which of the last ones arrived. Never blocks: messages that cannot be sent
  /// yet wait, see waiting_bytes. No effect on a connection that is closed.
  virtual void send(ConnectionId connection, Message message) = 0;
  /// Bytes that send() has taken and the peer has not, for flow control.
  virtual std::size_t waiting_bytes(ConnectionId connection) const = 0;
  /// Reads nothing more from it until the other call: the peer feels it as back-pressure.
  virtual void pause(ConnectionId connection) = 0;
  virtual void resume(ConnectionId connection) = 0;
  /// No event of it follows.
  virtual void close(ConnectionId connection) = 0;
  /// The peer of an accepted connection is a member: limits for guests do not apply to it any more. Needed
  /// for nodes whose loop has NodeLoopOptions::node_registers.
  virtual void register_peer(ConnectionId /*connection*/) {}
};

/// Files of a node. Unsynced bytes may be lost, in part, when the node dies; synced ones are not.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual std::vector<std::string> names() const = 0;
  /// Empty when there is no such file.
  virtual std::optional<std::vector<std::byte>> read(const std::string& name) const = 0;
  virtual void append(const std::string& name, const std::vector<std::byte>& bytes) = 0;
  /// Earlier appends to it are safe when this returns. Throws DataError with the system's reason.
  virtual void sync(const std::string& name) = 0;
  /// The whole file, safely: afterwards, and after a crash in between, it is the old one or the new one.
  virtual void replace(const std::string& name, const std::vector<std::byte>& bytes) = 0;
  virtual void remove(const std::string& name) = 0;
};

/// All that a node has of the world: clock, random numbers, timers, disk and network.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  /// Nanoseconds of a clock that only goes forward; only differences mean something, and only on this node.
  /// From any thread.
  virtual std::int64_t now_ns() const = 0;
  /// From any thread: results of threads that a node has next to it. `work` runs on the node's thread,
  /// between two calls of the node and never from within this one; works run in the order of submission. It
  /// may run after the node has ended: the submitter keeps its data alive.
  virtual void post(std::function<void()> work) = 0;
  virtual std::uint64_t random() = 0;
  /// on_timer follows, once, not before this time has passed.
  virtual TimerId start_timer(double after_s) = 0;
  virtual void stop_timer(TimerId timer) = 0;
  virtual Network& network() = 0;
  virtual Disk& disk() = 0;
  /// For people: at most a line.
  virtual void report(const std::string& line) = 0;
};

class Node {
 public:
  virtual ~Node() = default;
  /// Before every other call; the surroundings outlive the node.
  virtual void on_start(Surroundings& surroundings) = 0;
  /// Of connect(), or of a peer that has connected to this node.
  virtual void on_connected(ConnectionId connection, const PeerIdentity& peer) = 0;
  virtual void on_message(ConnectionId connection, Message message) = 0;
  /// Nothing of this connection follows.
  virtual void on_closed(ConnectionId connection, CloseCause cause, const std::string& reason) = 0;
  virtual void on_timer(TimerId timer) = 0;
};

}  // namespace trireme::wire
