#include "trireme/topology/internal/introduction.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::topology {
namespace {

using wire::Digest;
using wire::Nonce;
using wire::Secret;
using wire::Socket;

// Of those who have proved nothing; beyond, the oldest makes room.
constexpr std::size_t kMostStrangers = 256;
constexpr int kMostAcceptedAtOnce = 64;

std::string_view bytes_of(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

/// Of no use for another purpose, or to the other side.
Digest proof(const Secret& secret, const char* speaker, const Terms& terms, const Nonce& of_from,
             const Nonce& of_to) {
  return wire::hmac_sha256(secret, text("trireme topology ", speaker, " ", terms.from, " ", terms.to, " ",
                                        terms.purpose, " ", bytes_of(of_from), bytes_of(of_to)));
}

/// A few bytes to a socket that nothing has been sent to: there is room for them.
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
    throw CommError(text(deadline.expired() ? "nothing comes back from " : "refused at ", endpoint.text()));
  }
  const Nonce theirs = receive_value<Nonce>(*socket, deadline);
  const Nonce mine = wire::random_nonce();
  send_value(*socket, Introduction{terms.from, mine, proof(secret, "from", terms, mine, theirs)}, deadline);
  if (!wire::equal(receive_value<Digest>(*socket, deadline), proof(secret, "to", terms, mine, theirs)))
    throw CommError(text(endpoint.text(), " does not know the job's secret"));
  return std::move(*socket);
}

Reception::Reception(const Socket& listening, const Secret& secret, Terms terms)
    : listening_(listening), secret_(secret), terms_(std::move(terms)) {}

Introduced Reception::next(const std::function<bool(int from)>& expects, const Deadline& deadline) {
  while (true) {
    std::vector<pollfd> polled{{.fd = listening_.fd(), .events = POLLIN, .revents = 0}};
    for (const Stranger& each : strangers_)
      polled.push_back({.fd = each.socket.fd(), .events = POLLIN, .revents = 0});
    const double left_ms = std::min(std::ceil(deadline.remaining_s() * 1000), 1e9);
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(left_ms));
    if (ready < 0 && errno != EINTR)
      throw CommError(text("cannot wait for a connection: ", std::strerror(errno)));
    for (std::size_t i = 1; ready > 0 && i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      const auto at = strangers_.begin() + static_cast<std::ptrdiff_t>(i - 1);
      if (const auto from = hear(*at, expects)) {
        Introduced result{*from, std::move(at->socket)};
        strangers_.erase(at);
        return result;
      }
    }
    std::erase_if(strangers_, [](const Stranger& each) { return each.socket.fd() < 0; });
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
  const bool welcome = got > 0 &&
                       wire::equal(said.proof, proof(secret_, "from", terms, said.nonce, stranger.nonce)) &&
                       expects(terms.from) &&
                       send_at_once(stranger.socket, proof(secret_, "to", terms, said.nonce, stranger.nonce));
  if (welcome) return terms.from;
  send_away(stranger);
  return {};
}

void Reception::accept_all() {
  for (int i = 0; i < kMostAcceptedAtOnce; ++i) {
    Socket socket(::accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int error = errno;
    const bool none_left = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
    if (socket.fd() < 0 && none_left && strangers_.empty())
      throw CommError(text("cannot accept a connection: ", std::strerror(error)));
    if (socket.fd() < 0 && !none_left) return;
    if (socket.fd() < 0 || strangers_.size() == kMostStrangers) {
      send_away(strangers_.front());
      strangers_.pop_front();
    }
    if (socket.fd() < 0) continue;
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::string address = socket.peer().text();
    strangers_.push_back({.socket = std::move(socket), .address = address, .nonce = wire::random_nonce()});
    if (!send_at_once(strangers_.back().socket, strangers_.back().nonce)) {
      send_away(strangers_.back());
      strangers_.pop_back();
    }
  }
}

void Reception::send_away(Stranger& stranger) {
  ++num_sent_away_;
  last_sent_away_ = stranger.address;
  stranger.socket = Socket();
}

void Reception::throw_nobody_came() const {
  std::string others;
  if (num_sent_away_ > 0)
    others = text("; ", num_sent_away_, " that came were not expected or proved nothing, the last one from ",
                  last_sent_away_);
  if (!strangers_.empty())
    others += text("; ", strangers_.size(), " said nothing or not enough, the first one from ",
                   strangers_.front().address);
  throw CommError(text("no connection came", others));
}

}  // namespace trireme::topology
