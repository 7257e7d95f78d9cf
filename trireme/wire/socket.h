#pragma once
// TCP with deadlines: every call ends by its Deadline, with a result or a CommError that names the peer. No
// SIGPIPE. Only the resolver's own time limits bound the look-up of a host name. A Socket belongs to one
// thread.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "trireme/base/clock.h"

namespace trireme::wire {

/// A listening address.
struct Endpoint {
  std::string host;  ///< a name or an address
  int port = 0;

  std::string text() const;
  /// "HOST:PORT", "[::1]:PORT". Throws InvalidArgument that names it `what`.
  static Endpoint parse(const std::string& text, const std::string& what);
};

/// A socket that never blocks, closed at its end.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }
  /// Numbers: "10.0.0.2:41234".
  Endpoint local() const;
  Endpoint peer() const;

 private:
  int fd_;
};

/// Whether only programs of this host reach it. Throws CommError for an unknown host.
bool is_loopback(const Endpoint& endpoint);

/// Port 0 takes a free one: see local(). Throws CommError with the system's reason and the remedy.
Socket bind_to(const Endpoint& endpoint);
Socket listen_at(const Endpoint& endpoint);

/// One attempt; empty when no process listens there, or no answer comes by the deadline. Throws CommError for
/// an unknown host.
std::optional<Socket> try_connect(const Endpoint& endpoint, const Deadline& deadline);

void send_all(const Socket& socket, std::span<const std::byte> bytes, const Deadline& deadline);
/// Fills `bytes`. Throws CommError that names the peer: at the deadline, and when it has closed before.
void receive_all(const Socket& socket, std::span<std::byte> bytes, const Deadline& deadline);

/// The address of this host that faces the other one; empty when there is no way.
std::string local_address_towards(const Endpoint& endpoint);

}  // namespace trireme::wire
