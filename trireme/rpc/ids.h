#pragma once
// Identities of workers and calls, and of the values of remote references. Values.

#include <compare>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/wire/node.h"

namespace trireme::rpc {

/// Of one worker from its joining to its end; never given twice in a group.
using WorkerId = std::uint32_t;
inline constexpr WorkerId kNobody = 0;

/// A worker's entry for the others at the rendezvous.
struct WorkerInfo {
  WorkerId id = kNobody;
  std::string name = {};
  std::string host = {};                      ///< see base/host.h: workers with an equal one may use Unix
                                              ///< sockets
  std::vector<wire::Address> addresses = {};  ///< where it listens

  bool operator==(const WorkerInfo&) const = default;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.name, self.host, self.addresses);
  }
};

/// A value that is on its owner. A pair of creator and owner numbers its references from 1, so the owner can
/// distinguish a future one from a released one.
struct RefId {
  WorkerId creator = kNobody;
  WorkerId owner = kNobody;
  std::uint64_t number = 0;

  auto operator<=>(const RefId&) const = default;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.creator, self.owner, self.number);
  }
};

}  // namespace trireme::rpc
