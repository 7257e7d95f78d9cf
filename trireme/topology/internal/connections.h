#pragma once
// The transport of an Exchange between its members: the interface between lists of transfers and a network.
// One function below for each; a new one takes its row in connections.cpp. Belongs to one thread; abort() to
// any.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/topology/exchange.h"

namespace trireme::topology {

/// One of the ways to a member.
struct Line {
  int peer = 0;
  std::size_t lane = 0;
};

class Connections {
 public:
  virtual ~Connections() = default;

  virtual int num_lanes() const = 0;
  /// As Exchange::set_lanes, whose members have met.
  virtual void set_lanes(int lanes, const wire::Socket& listening, const Membership& membership,
                         const Deadline& deadline) = 0;

  /// From here to the next call everything belongs to the operation of this number and hash: messages of
  /// another one do not arrive in it.
  virtual void begin(std::uint64_t tag) = 0;
  /// Sends or receives as many bytes as possible without waiting; returns their number. After a part the
  /// caller continues with the rest of the same memory, which stays unchanged until all has moved, or drop().
  /// Throw CommError where the connection is lost.
  virtual std::size_t send(const Line& line, std::span<const std::byte> bytes) = 0;
  virtual std::size_t receive(const Line& line, std::span<std::byte> bytes) = 0;
  /// Whether the arriving bytes are known to be of another operation.
  virtual bool differs(const Line& line) const = 0;
  /// Waits until one of these may move. Throws CommError at the deadline, which names the awaited peers.
  virtual void wait(std::span<const Line> receives, std::span<const Line> sends,
                    const Deadline& deadline) = 0;
  /// Waits until abort() or the deadline; then throws CommError, which names the peer as one in another
  /// operation.
  [[noreturn]] virtual void stand_still(int peer, const Deadline& deadline) = 0;

  /// Completes the sends: they arrive without further calls.
  virtual void end() = 0;

  /// Ends pending operations; waiting calls, in any thread, throw.
  virtual void abort() = 0;
  /// After an operation that failed: no memory of it is touched any more.
  virtual void drop() = 0;
};

/// Over `membership.network`. Throw as the constructor of Exchange.
std::unique_ptr<Connections> make_connections(const wire::Socket& listening, const Membership& membership,
                                              const Deadline& deadline);
std::unique_ptr<Connections> make_tcp_connections(const wire::Socket& listening, const Membership& membership,
                                                  const Deadline& deadline);
std::unique_ptr<Connections> make_ucx_connections(const wire::Socket& listening, const Membership& membership,
                                                  const Deadline& deadline);

/// Size of the pieces of a receive, counted from the begin of a transfer; a piece stays in the second cache
/// between its arrival and its addition.
inline constexpr std::size_t kBlockBytes = 256 << 10;

/// "nothing has come from rank 1, rank 3 by the deadline".
[[noreturn]] void throw_late(const std::vector<std::string>& names, std::span<const Line> waited_for);
/// "rank 1 is in another operation, or in one of another size or type".
[[noreturn]] void throw_differs(const std::string& name);

}  // namespace trireme::topology
