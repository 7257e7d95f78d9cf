#include "trireme/topology/internal/members.h"

#include <algorithm>
#include <future>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/topology/internal/introduction.h"
#include "trireme/wire/store_client.h"

namespace trireme::topology {
namespace {

/// A connecting rank sends its rank and the lane as one number.
struct Caller {
  int rank, lane;
  static Caller of(int number, int size) { return {number % size, number / size}; }
  int number(int size) const { return lane * size + rank; }
};

/// Accepts the connections of higher ranks, in any order.
void accept_members(const wire::Socket& listening, const Membership& membership, int first,
                    std::vector<Lane>& lanes, const Deadline& deadline) {
  const int size = static_cast<int>(membership.endpoints.size()), me = membership.rank;
  const auto place_of = [&](const Caller& caller) -> wire::Socket* {
    const int lane = caller.lane - first;
    if (caller.rank <= me || lane < 0 || std::cmp_greater_equal(lane, lanes.size())) return nullptr;
    wire::Socket& place = lanes[static_cast<std::size_t>(lane)][static_cast<std::size_t>(caller.rank)];
    return place.fd() < 0 ? &place : nullptr;
  };
  Reception reception(listening, membership.secret, {.to = me, .purpose = membership.purpose});
  for (int left = (size - 1 - me) * static_cast<int>(lanes.size()); left > 0; --left) {
    try {
      auto next = reception.next(
          [&](int from) { return from >= 0 && place_of(Caller::of(from, size)) != nullptr; }, deadline);
      *place_of(Caller::of(next.from, size)) = std::move(next.socket);
    } catch (const CommError& error) {
      std::vector<std::string> missing;
      for (int from = me + 1; from < size; ++from) {
        const auto is_missing = [&](const Lane& lane) {
          return lane[static_cast<std::size_t>(from)].fd() < 0;
        };
        if (std::ranges::any_of(lanes, is_missing))
          missing.push_back(membership.names[static_cast<std::size_t>(from)]);
      }
      throw CommError(text(membership.names[static_cast<std::size_t>(me)], " waits for connections of ",
                           join(missing), ": ", error.what()));
    }
  }
}

}  // namespace

std::vector<Lane> connect_members(const wire::Socket& listening, const Membership& given, int first,
                                  int lanes, const Deadline& deadline) {
  Membership membership = given;
  membership.secret = wire::secret_at(listening.local(), given.secret);
  const int size = static_cast<int>(membership.endpoints.size());
  std::vector<Lane> result(static_cast<std::size_t>(lanes));
  for (Lane& lane : result) lane.resize(membership.endpoints.size());
  // Concurrently: over a long link each connection takes some round trips.
  struct Connecting {
    std::size_t lane, to;
    std::future<wire::Socket> socket;
  };
  std::vector<Connecting> connecting;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int to = 0; to < membership.rank; ++to) {
      const Terms terms{.from = Caller{membership.rank, first + lane}.number(size),
                        .to = to,
                        .purpose = membership.purpose};
      connecting.push_back({static_cast<std::size_t>(lane), static_cast<std::size_t>(to),
                            std::async(std::launch::async, [&, terms] {
                              return connect_introduced(
                                  membership.endpoints[static_cast<std::size_t>(terms.to)], membership.secret,
                                  terms, deadline);
                            })});
    }
  }
  std::string problem;
  const std::string& me = membership.names[static_cast<std::size_t>(membership.rank)];
  try {
    accept_members(listening, membership, first, result, deadline);
  } catch (const CommError& error) {
    problem = error.what();
  }
  // A rejection is more informative than a missing connection, so it has priority.
  for (Connecting& each : connecting) {
    try {
      result[each.lane][each.to] = each.socket.get();
    } catch (const CommError& error) {
      problem = text(me, " cannot connect to ", membership.names[each.to], ": ", error.what());
    }
  }
  if (!problem.empty()) throw CommError(problem);
  return result;
}

}  // namespace trireme::topology
