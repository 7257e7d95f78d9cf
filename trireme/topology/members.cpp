#include "trireme/topology/internal/members.h"

#include <algorithm>
#include <future>

#include "trireme/base/error.h"
#include "trireme/topology/internal/introduction.h"

namespace trireme::topology {
namespace {

/// Those of higher rank, who come in any order.
void accept_members(const wire::Socket& listening, const Membership& membership,
                    std::vector<wire::Socket>& sockets, const Deadline& deadline) {
  const int size = static_cast<int>(membership.endpoints.size());
  const auto expects = [&](int from) {
    return from > membership.rank && from < size && sockets[static_cast<std::size_t>(from)].fd() < 0;
  };
  for (int left = size - 1 - membership.rank; left > 0; --left) {
    try {
      auto next =
          accept_introduced(listening, membership.secret,
                            {.to = membership.rank, .purpose = membership.purpose}, expects, deadline);
      sockets[static_cast<std::size_t>(next.from)] = std::move(next.socket);
    } catch (const CommError& error) {
      std::vector<std::string> missing;
      for (int from = membership.rank + 1; from < size; ++from) {
        if (expects(from)) missing.push_back(membership.names[static_cast<std::size_t>(from)]);
      }
      throw CommError(text(membership.names[static_cast<std::size_t>(membership.rank)],
                           " waits for connections of ", join(missing), ": ", error.what()));
    }
  }
}

}  // namespace

std::vector<wire::Socket> connect_members(const wire::Socket& listening, const Membership& membership,
                                          const Deadline& deadline) {
  std::vector<wire::Socket> sockets(membership.endpoints.size());
  // All at once: over a long link each takes some round trips.
  std::vector<std::future<wire::Socket>> connecting;
  for (int to = 0; to < membership.rank; ++to) {
    connecting.push_back(std::async(std::launch::async, [&, to] {
      return connect_introduced(membership.endpoints[static_cast<std::size_t>(to)], membership.secret,
                                {.from = membership.rank, .to = to, .purpose = membership.purpose}, deadline);
    }));
  }
  std::string problem;
  const std::string& me = membership.names[static_cast<std::size_t>(membership.rank)];
  try {
    accept_members(listening, membership, sockets, deadline);
  } catch (const CommError& error) {
    problem = error.what();
  }
  // One that refuses says more than one who does not come.
  for (std::size_t to = 0; to < connecting.size(); ++to) {
    try {
      sockets[to] = connecting[to].get();
    } catch (const CommError& error) {
      problem = text(me, " cannot connect to ", membership.names[to], ": ", error.what());
    }
  }
  if (!problem.empty()) throw CommError(problem);
  return sockets;
}

}  // namespace trireme::topology
