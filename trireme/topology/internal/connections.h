#pragma once
// What carries the bytes of an Exchange between its members: the seam between lists of transfers and a
// network. One function below for each; a new one takes its row in connections.cpp.
// Belongs to one thread; abort() to any.

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

  /// From here to the next call everything belongs to the operation of this number and hash: what others
  /// send in another one does not arrive in it.
  virtual void begin(std::uint64_t tag) = 0;
  /// As much as goes at once; how many of the bytes. Who has sent or received a part comes back with the
  /// rest of the same memory, which stays as it is until all has moved, or drop(). Throw CommError where the
  /// connection is lost.
  virtual std::size_t send(const Line& line, std::span<const std::byte> bytes) = 0;
  virtual std::size_t receive(const Line& line, std::span<std::byte> bytes) = 0;
  /// What arrives over the line is known to be of another operation.
  virtual bool differs(const Line& line) const = 0;
  /// Until one of these may move. Throws CommError at the deadline, which names whoever is waited for.
  virtual void wait(std::span<const Line> receives, std::span<const Line> sends,
                    const Deadline& deadline) = 0;
  /// Until somebody gives up or the deadline; then CommError, which says that the peer is in another
  /// operation.
  [[noreturn]] virtual void stand_still(int peer, const Deadline& deadline) = 0;

  /// What was sent arrives without further calls.
  virtual void end() = 0;

  /// Ends what is under way; whoever waits, in whatever thread, throws.
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

/// What is received is asked for in pieces of so many bytes, counted from where a transfer begins, or in one;
/// a piece stays in the second cache between its arrival and its addition.
inline constexpr std::size_t kBlockBytes = 256 << 10;

/// "nothing has come from rank 1, rank 3 by the deadline".
[[noreturn]] void throw_late(const std::vector<std::string>& names, std::span<const Line> waited_for);
/// "rank 1 is in another operation, or in one of another size or type".
[[noreturn]] void throw_differs(const std::string& name);

}  // namespace trireme::topology
