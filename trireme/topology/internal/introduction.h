#pragma once
// How two ranks get a connection of which both know who is at the other end: who connects says its rank, and
// both prove that they know the job's secret (HMAC over numbers that both have drawn). Sockets have
// TCP_NODELAY. Belongs to one thread.

#include <functional>
#include <string>

#include "trireme/wire/secret.h"
#include "trireme/wire/socket.h"

namespace trireme::topology {

/// What both ends have to agree about.
struct Terms {
  int from = 0;  ///< the rank that connects
  int to = 0;
  std::string purpose;
};

/// Throws CommError, as all of these.
wire::Socket connect_introduced(const wire::Endpoint& endpoint, const wire::Secret& secret,
                                const Terms& terms, const Deadline& deadline);

struct Introduced {
  int from = 0;
  wire::Socket socket;
};
/// The next one that `expects` says yes to. Whoever else comes, or proves nothing, is sent away without
/// ending the wait. `terms.from` is not looked at.
Introduced accept_introduced(const wire::Socket& listening, const wire::Secret& secret, Terms terms,
                             const std::function<bool(int from)>& expects, const Deadline& deadline);

template <class T>
void send_value(const wire::Socket& socket, const T& value, const Deadline& deadline) {
  wire::send_all(socket, std::as_bytes(std::span(&value, 1)), deadline);
}
template <class T>
T receive_value(const wire::Socket& socket, const Deadline& deadline) {
  T value{};
  wire::receive_all(socket, std::as_writable_bytes(std::span(&value, 1)), deadline);
  return value;
}

}  // namespace trireme::topology
