#include "trireme/topology/internal/introduction.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>

#include "trireme/base/error.h"

namespace trireme::topology {
namespace {

using wire::Digest;
using wire::Nonce;
using wire::Secret;
using wire::Socket;

// A stranger who says nothing holds up the one who is expected no longer than that.
constexpr double kMostForProof_s = 1;

std::string_view bytes_of(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

/// Of no use for another purpose, or to the other side.
Digest proof(const Secret& secret, const char* speaker, const Terms& terms, const Nonce& of_from,
             const Nonce& of_to) {
  return wire::hmac_sha256(secret, text("trireme topology ", speaker, " ", terms.from, " ", terms.to, " ",
                                        terms.purpose, " ", bytes_of(of_from), bytes_of(of_to)));
}

struct Introduction {
  std::int64_t from = 0;
  Nonce nonce;
  Digest proof;
};

/// Who it is, once that is proved and expected; he has been told so then.
std::optional<int> introduced(const Socket& socket, const Secret& secret, Terms terms,
                              const std::function<bool(int)>& expects, const Deadline& deadline) {
  try {
    const Nonce mine = wire::random_nonce();
    send_value(socket, mine, deadline);
    const auto theirs = receive_value<Introduction>(socket, deadline);
    terms.from = static_cast<int>(theirs.from);
    if (!wire::equal(theirs.proof, proof(secret, "from", terms, theirs.nonce, mine))) return {};
    if (!expects(terms.from)) return {};
    send_value(socket, proof(secret, "to", terms, theirs.nonce, mine), deadline);
    return terms.from;
  } catch (const CommError&) {
    return {};
  }
}

}  // namespace

Socket connect_introduced(const wire::Endpoint& endpoint, const Secret& secret, const Terms& terms,
                          const Deadline& deadline) {
  auto socket = wire::try_connect(endpoint, deadline);
  if (!socket) {
    throw CommError(text(deadline.expired() ? "nothing comes back from " : "refused at ", endpoint.text()));
  }
  const Nonce theirs = receive_value<Nonce>(*socket, deadline);
  const Nonce mine = wire::random_nonce();
  send_value(*socket, Introduction{terms.from, mine, proof(secret, "from", terms, mine, theirs)}, deadline);
  if (!wire::equal(receive_value<Digest>(*socket, deadline), proof(secret, "to", terms, mine, theirs)))
    throw CommError(text(endpoint.text(), " does not know the job's secret"));
  return std::move(*socket);
}

Introduced accept_introduced(const Socket& listening, const Secret& secret, Terms terms,
                             const std::function<bool(int from)>& expects, const Deadline& deadline) {
  while (true) {
    pollfd polled{.fd = listening.fd(), .events = POLLIN, .revents = 0};
    const double left_ms = std::min(std::ceil(deadline.remaining_s() * 1000), 1e9);
    const int ready = ::poll(&polled, 1, static_cast<int>(left_ms));
    if (ready < 0 && errno != EINTR)
      throw CommError(text("cannot wait for a connection: ", std::strerror(errno)));
    if (ready <= 0 && deadline.expired()) throw CommError("no connection came");
    Socket socket(::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.fd() < 0) continue;
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const Deadline for_proof = Deadline::after_s(std::min(kMostForProof_s, deadline.remaining_s()));
    const auto from = introduced(socket, secret, terms, expects, for_proof);
    if (from) return {*from, std::move(socket)};
  }
}

}  // namespace trireme::topology
