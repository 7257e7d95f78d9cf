#pragma once
// Connects each member of a group with each other, by one connection or several: the higher rank connects,
// the lower one accepts.

#include <vector>

#include "trireme/topology/exchange.h"

namespace trireme::topology {

/// By member; none for this one.
using Lane = std::vector<wire::Socket>;

/// Lanes from number `first` on. Collective; members that still connect other lanes reject each other, so all
/// have to be done with those before. Throws CommError that names the member.
std::vector<Lane> connect_members(const wire::Socket& listening, const Membership& membership, int first,
                                  int lanes, const Deadline& deadline);

}  // namespace trireme::topology
