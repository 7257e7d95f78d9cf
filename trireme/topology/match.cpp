#include "trireme/topology/internal/match.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::topology {
namespace {

using wire::Digest;
using wire::Nonce;
using wire::Secret;
using wire::Socket;

// A stranger who says nothing holds up the one who is expected no longer than that.
constexpr double kMostForProof_s = 1;

// Enough for a median; a slow link makes do with fewer.
constexpr int kLeastTrips = 3;
constexpr int kMostTrips = 15;
// A message is long enough when it takes this much longer than a small one: a timer's and a scheduler's
// noise are a small part of that.
constexpr double kLongEnough_s = 0.002;
constexpr double kTooLongForTwo_s = 0.3;
// A long link needs some round trips before TCP sends as fast as it can.
constexpr double kPatienceInAlphas = 20;
constexpr std::uint64_t kFirstBytes = 64 << 10;
constexpr std::uint64_t kMostBytes = 4 << 20;

template <class T>
void send_value(const Socket& socket, const T& value, const Deadline& deadline) {
  wire::send_all(socket, std::as_bytes(std::span(&value, 1)), deadline);
}
template <class T>
T receive_value(const Socket& socket, const Deadline& deadline) {
  T value{};
  wire::receive_all(socket, std::as_writable_bytes(std::span(&value, 1)), deadline);
  return value;
}

std::string_view bytes_of(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

/// Of no use in another match, or to the other side.
Digest proof(const Secret& secret, const char* speaker, const MatchTerms& terms, const Nonce& of_from,
             const Nonce& of_to) {
  return wire::hmac_sha256(secret, text("trireme topology ", speaker, " ", terms.from, " ", terms.to, " ",
                                        terms.round, " ", bytes_of(of_from), bytes_of(of_to)));
}

struct Introduction {
  Nonce nonce;
  Digest proof;
};

/// Whether it is the expected one, who has been told so then.
bool is_expected(const Socket& socket, const Secret& secret, const MatchTerms& terms,
                 const Deadline& deadline) {
  try {
    const Nonce mine = wire::random_nonce();
    send_value(socket, mine, deadline);
    const auto theirs = receive_value<Introduction>(socket, deadline);
    if (!wire::equal(theirs.proof, proof(secret, "from", terms, theirs.nonce, mine))) return false;
    send_value(socket, proof(secret, "to", terms, theirs.nonce, mine), deadline);
    return true;
  } catch (const CommError&) {
    return false;
  }
}

enum class Wish : std::uint64_t { kEcho = 1, kTake, kGive, kEnd };
struct Order {
  Wish wish = Wish::kEnd;
  std::uint64_t bytes = 0;
};

double ask_s(const Socket& socket, const Order& order, std::vector<std::byte>& bytes,
             const Deadline& deadline) {
  const std::span<std::byte> part(bytes.data(), order.bytes);
  const double began_s = now_s();
  send_value(socket, order, deadline);
  if (order.wish == Wish::kTake) wire::send_all(socket, part, deadline);
  if (order.wish == Wish::kGive) wire::receive_all(socket, part, deadline);
  receive_value<Order>(socket, deadline);
  return now_s() - began_s;
}

/// Half the median of some round trips.
double measure_alpha_s(const Socket& socket, double patience_s, std::vector<std::byte>& bytes,
                       const Deadline& deadline) {
  const Order echo{.wish = Wish::kEcho};
  const double began_s = now_s();
  std::vector<double> trips;
  while (static_cast<int>(trips.size()) < kLeastTrips ||
         (static_cast<int>(trips.size()) < kMostTrips && now_s() - began_s < patience_s)) {
    trips.push_back(ask_s(socket, echo, bytes, deadline));
  }
  const auto middle = trips.begin() + static_cast<std::ptrdiff_t>(trips.size() / 2);
  std::ranges::nth_element(trips, middle);
  return *middle / 2;
}

/// The message's way there, without the latency of order and answer.
double measure_bytes_per_s(const Socket& socket, Wish wish, double alpha_s, double patience_s,
                           std::vector<std::byte>& bytes, const Deadline& deadline) {
  const double began_s = now_s();
  const double enough_s = std::max(patience_s, kPatienceInAlphas * alpha_s);
  for (std::uint64_t size = kFirstBytes;; size *= 4) {
    bytes.resize(size);
    const Order order{.wish = wish, .bytes = size};
    // The first message of a size makes a connection ready for it, and one of the two may have had to wait
    // for a core.
    double took_s = ask_s(socket, order, bytes, deadline);
    if (took_s < kTooLongForTwo_s) took_s = std::min(took_s, ask_s(socket, order, bytes, deadline));
    const double on_the_way_s = took_s - 2 * alpha_s;
    // Faster than its latency can be told from: the whole time is an upper limit.
    const double rate = static_cast<double>(size) / (on_the_way_s > took_s / 10 ? on_the_way_s : took_s);
    if (on_the_way_s >= kLongEnough_s || size == kMostBytes || now_s() - began_s > enough_s) return rate;
  }
}

}  // namespace

Socket connect_match(const wire::Endpoint& endpoint, const Secret& secret, const MatchTerms& terms,
                     const Deadline& deadline) {
  auto socket = wire::try_connect(endpoint, deadline);
  if (!socket) {
    throw CommError(text(deadline.expired() ? "nothing comes back from " : "refused at ", endpoint.text()));
  }
  const Nonce theirs = receive_value<Nonce>(*socket, deadline);
  const Nonce mine = wire::random_nonce();
  send_value(*socket, Introduction{mine, proof(secret, "from", terms, mine, theirs)}, deadline);
  if (!wire::equal(receive_value<Digest>(*socket, deadline), proof(secret, "to", terms, mine, theirs)))
    throw CommError(text(endpoint.text(), " does not know the job's secret"));
  return std::move(*socket);
}

Socket accept_match(const Socket& listening, const Secret& secret, const MatchTerms& terms,
                    const Deadline& deadline) {
  while (true) {
    pollfd polled{.fd = listening.fd(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::ceil(deadline.remaining_s() * 1000)));
    if (ready < 0 && errno != EINTR)
      throw CommError(text("cannot wait for a connection: ", std::strerror(errno)));
    if (ready <= 0 && deadline.expired()) throw CommError("no connection came");
    Socket socket(::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.fd() < 0) continue;
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const Deadline for_proof = Deadline::after_s(std::min(kMostForProof_s, deadline.remaining_s()));
    if (is_expected(socket, secret, terms, for_proof)) return socket;
  }
}

std::pair<Link, Link> drive_match(const Socket& socket, double patience_s, const Deadline& deadline) {
  std::vector<std::byte> bytes;
  ask_s(socket, {.wish = Wish::kEcho}, bytes, deadline);  // wakes the other end
  const double alpha_s = measure_alpha_s(socket, patience_s, bytes, deadline);
  const auto rate = [&](Wish wish) {
    return measure_bytes_per_s(socket, wish, alpha_s, patience_s, bytes, deadline);
  };
  const Link there{alpha_s, rate(Wish::kTake)};
  const Link back{alpha_s, rate(Wish::kGive)};
  ask_s(socket, {.wish = Wish::kEnd}, bytes, deadline);
  return {there, back};
}

void answer_match(const Socket& socket, const Deadline& deadline) {
  std::vector<std::byte> bytes;
  while (true) {
    const auto order = receive_value<Order>(socket, deadline);
    if (order.bytes > kMostBytes) throw CommError("a message that is no part of a probe");
    bytes.resize(order.bytes);
    if (order.wish == Wish::kTake) wire::receive_all(socket, bytes, deadline);
    if (order.wish == Wish::kGive) wire::send_all(socket, bytes, deadline);
    send_value(socket, order, deadline);
    if (order.wish == Wish::kEnd) return;
  }
}

}  // namespace trireme::topology
