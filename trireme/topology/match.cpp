#include "trireme/topology/internal/match.h"

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/topology/internal/introduction.h"

namespace trireme::topology {
namespace {

using wire::Secret;
using wire::Socket;

// Enough for a median. A slow link gets fewer.
constexpr int kMinTrips = 3;
constexpr int kMaxTrips = 15;
// A message is long enough if it takes this much longer than a small one. The noise of timers and of the
// scheduler is small compared with this.
constexpr double kLongEnough_s = 0.002;
constexpr double kTooLongForTwo_s = 0.3;
// A long link needs some round trips before TCP reaches its full rate.
constexpr double kPatienceInAlphas = 20;
constexpr std::uint64_t kFirstBytes = 64 << 10;
constexpr std::uint64_t kMostBytes = 4 << 20;

Terms introduction_of(const MatchTerms& terms) {
  return {.from = terms.from, .to = terms.to, .purpose = text("round ", terms.round)};
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
  while (static_cast<int>(trips.size()) < kMinTrips ||
         (static_cast<int>(trips.size()) < kMaxTrips && now_s() - began_s < patience_s)) {
    trips.push_back(ask_s(socket, echo, bytes, deadline));
  }
  const auto middle = trips.begin() + static_cast<std::ptrdiff_t>(trips.size() / 2);
  std::ranges::nth_element(trips, middle);
  return *middle / 2;
}

/// Rate of the message in one direction, without the latency of request and answer.
double measure_bytes_per_s(const Socket& socket, Wish wish, double alpha_s, double patience_s,
                           std::vector<std::byte>& bytes, const Deadline& deadline) {
  const double began_s = now_s();
  const double enough_s = std::max(patience_s, kPatienceInAlphas * alpha_s);
  for (std::uint64_t size = kFirstBytes;; size *= 4) {
    bytes.resize(size);
    const Order order{.wish = wish, .bytes = size};
    // The first message of a size also sets up the connection, and either of the two may have waited for a
    // core.
    double took_s = ask_s(socket, order, bytes, deadline);
    if (took_s < kTooLongForTwo_s) took_s = std::min(took_s, ask_s(socket, order, bytes, deadline));
    const double on_the_way_s = took_s - 2 * alpha_s;
    // If the transfer time cannot be told from the latency, the whole time is its upper limit.
    const double rate = static_cast<double>(size) / (on_the_way_s > took_s / 10 ? on_the_way_s : took_s);
    if (on_the_way_s >= kLongEnough_s || size == kMostBytes || now_s() - began_s > enough_s) return rate;
  }
}

}  // namespace

Socket connect_match(const wire::Endpoint& endpoint, const Secret& secret, const MatchTerms& terms,
                     const Deadline& deadline) {
  return connect_introduced(endpoint, secret, introduction_of(terms), deadline);
}

Socket accept_match(const Socket& listening, const Secret& secret, const MatchTerms& terms,
                    const Deadline& deadline) {
  Reception reception(listening, secret, introduction_of(terms));
  return reception.next([&](int from) { return from == terms.from; }, deadline).socket;
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
