#pragma once
// Connects each member of a group with each other: the higher rank connects, the lower one accepts.

#include <vector>

#include "trireme/topology/exchange.h"

namespace trireme::topology {

/// By member; none for this one. Throws CommError that names the member.
std::vector<wire::Socket> connect_members(const wire::Socket& listening, const Membership& membership,
                                          const Deadline& deadline);

}  // namespace trireme::topology
