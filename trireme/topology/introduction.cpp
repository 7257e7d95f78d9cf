#include "trireme/topology/internal/introduction.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::topology {
namespace {

using wire::Digest;
using wire::Nonce;
using wire::Secret;
using wire::Socket;

// Limits for connections that are not authenticated yet.
constexpr std::size_t kMaxStrangers = 256;
constexpr int kMaxAcceptedAtOnce = 64;

std::string_view bytes_of(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

/// Address and port of a connection in one form, as the kernel has them. IPv4 is mapped into IPv6. The scope
/// of a link-local address is left out, because each host numbers its own.
std::string place(const Socket& socket, decltype(::getsockname)* which) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  which(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  std::array<char, 18> bytes{};
  if (address.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof v4);
    bytes[10] = bytes[11] = '\xff';
    std::memcpy(bytes.data() + 12, &v4.sin_addr, 4);
    std::memcpy(bytes.data() + 16, &v4.sin_port, 2);
  } else {
    sockaddr_in6 v6;
    std::memcpy(&v6, &address, sizeof v6);
    std::memcpy(bytes.data(), &v6.sin6_addr, 16);
    std::memcpy(bytes.data() + 16, &v6.sin6_port, 2);
  }
  return {bytes.begin(), bytes.end()};
}

/// Not valid for another purpose, for the other side, or at another address than the listener's.
Digest proof(const Secret& secret, const char* speaker, const Terms& terms, const std::string& listening_at,
             const Nonce& of_from, const Nonce& of_to) {
  return wire::hmac_sha256(
      secret, {text("trireme topology ", speaker, " ", terms.from, " ", terms.to, " ", terms.purpose, " ",
                    listening_at, bytes_of(of_from), bytes_of(of_to))});
}

/// Sends a few bytes. A socket that has sent nothing has room for them.
template <class T>
bool send_at_once(const Socket& socket, const T& value) {
  return ::send(socket.fd(), &value, sizeof value, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof value);
}

}  // namespace

Socket connect_introduced(const wire::Endpoint& endpoint, const Secret& secret, const Terms& terms,
                          const Deadline& deadline) {
  auto socket = wire::try_connect(endpoint, deadline);
  if (!socket) {
    throw CommError(text(deadline.expired() ? "no answer from " : "no connection to ", endpoint.text()));
  }
  const Nonce theirs = receive_value<Nonce>(*socket, deadline), mine = wire::random_nonce();
  const std::string there = place(*socket, ::getpeername);
  const auto proof_of = [&](const char* speaker) {
    return proof(secret, speaker, terms, there, mine, theirs);
  };
  send_value(*socket, Introduction{terms.from, mine, proof_of("from")}, deadline);
  Digest its_proof;
  try {
    its_proof = receive_value<Digest>(*socket, deadline);
  } catch (const CommError& error) {
    if (deadline.expired()) throw;
    throw CommError(text(error.what(),
                         " before it has proved that it knows the job's secret: it has another "
                         "one, or it listens at another address than ",
                         endpoint.text(), " (something between the hosts translates addresses)"));
  }
  if (!wire::equal(its_proof, proof_of("to")))
    throw CommError(text(endpoint.text(), " does not know the job's secret"));
  return std::move(*socket);
}

Reception::Reception(const Socket& listening, const Secret& secret, Terms terms)
    : listening_(listening), secret_(secret), terms_(std::move(terms)) {}

Introduced Reception::next(const std::function<bool(int from)>& expects, const Deadline& deadline) {
  while (true) {
    std::vector<pollfd> polled{{.fd = listening_.fd(), .events = POLLIN, .revents = 0}};
    for (const Stranger& each : unauthenticated_)
      polled.push_back({.fd = each.socket.fd(), .events = POLLIN, .revents = 0});
    const double left_ms = std::min(std::ceil(deadline.remaining_s() * 1000), 1e9);
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(left_ms));
    if (ready < 0 && errno != EINTR)
      throw CommError(text("cannot wait for a connection: ", std::strerror(errno)));
    for (std::size_t i = 1; ready > 0 && i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      const auto at = unauthenticated_.begin() + static_cast<std::ptrdiff_t>(i - 1);
      if (const auto from = hear(*at, expects)) {
        Introduced result{*from, std::move(at->socket)};
        unauthenticated_.erase(at);
        return result;
      }
    }
    std::erase_if(unauthenticated_, [](const Stranger& each) { return each.socket.fd() < 0; });
    if (ready > 0 && polled[0].revents != 0) accept_all();
    if (deadline.expired()) throw_nobody_came();
  }
}

std::optional<int> Reception::hear(Stranger& stranger, const std::function<bool(int from)>& expects) {
  auto* into = reinterpret_cast<char*>(&stranger.introduction);
  const ssize_t got = ::recv(stranger.socket.fd(), into + stranger.num_said,
                             sizeof stranger.introduction - stranger.num_said, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  if (got > 0) stranger.num_said += static_cast<std::size_t>(got);
  if (got > 0 && stranger.num_said < sizeof stranger.introduction) return {};
  const Introduction& said = stranger.introduction;
  Terms terms = terms_;
  terms.from = static_cast<int>(said.from);
  const std::string here = place(stranger.socket, ::getsockname);
  const auto proof_of = [&](const char* speaker) {
    return proof(secret_, speaker, terms, here, said.nonce, stranger.nonce);
  };
  const bool welcome = got > 0 && wire::equal(said.proof, proof_of("from")) && expects(terms.from) &&
                       send_at_once(stranger.socket, proof_of("to"));
  if (welcome) return terms.from;
  send_away(stranger);
  return {};
}

void Reception::accept_all() {
  for (int i = 0; i < kMaxAcceptedAtOnce; ++i) {
    Socket socket(::accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int error = errno;
    const bool none_left = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
    if (socket.fd() < 0 && none_left && unauthenticated_.empty())
      throw CommError(text("cannot accept a connection: ", std::strerror(error)));
    if (socket.fd() < 0 && !none_left) return;
    if (socket.fd() < 0 || unauthenticated_.size() == kMaxStrangers) make_room();
    if (socket.fd() < 0) continue;
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    wire::Endpoint peer = socket.peer();
    unauthenticated_.push_back({.socket = std::move(socket), .peer = peer, .nonce = wire::random_nonce()});
    if (!send_at_once(unauthenticated_.back().socket, unauthenticated_.back().nonce)) {
      send_away(unauthenticated_.back());
      unauthenticated_.pop_back();
    }
  }
}

void Reception::make_room() {
  std::map<std::string, int> of_host;
  for (const Stranger& each : unauthenticated_) ++of_host[each.peer.host];
  const auto most = std::ranges::max_element(of_host, {}, [](const auto& each) { return each.second; });
  const auto oldest = std::ranges::find_if(
      unauthenticated_, [&](const Stranger& each) { return each.peer.host == most->first; });
  send_away(*oldest);
  unauthenticated_.erase(oldest);
}

void Reception::send_away(Stranger& stranger) {
  ++num_sent_away_;
  last_sent_away_ = stranger.peer.text();
  stranger.socket = Socket();
}

void Reception::throw_nobody_came() const {
  std::string others;
  if (num_sent_away_ > 0)
    others = text("; ", num_sent_away_, " that came were not expected or proved nothing, the last one from ",
                  last_sent_away_);
  if (!unauthenticated_.empty())
    others += text("; ", unauthenticated_.size(), " said nothing or not enough, the first one from ",
                   unauthenticated_.front().peer.text());
  throw CommError(text("no connection came", others));
}

}  // namespace trireme::topology
