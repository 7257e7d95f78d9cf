#pragma once
// One pair of a probe: its connection and its measurements. The lower rank connects and drives; the other
// answers until the last message. Belongs to one thread.

#include <utility>

#include "trireme/topology/link_table.h"
#include "trireme/wire/secret.h"
#include "trireme/wire/socket.h"

namespace trireme::topology {

/// Settings that have to be equal at both ends of a connection.
struct MatchTerms {
  int from = 0;  ///< the rank that connects
  int to = 0;
  int round = 0;
};

/// Throws CommError, as all of these.
wire::Socket connect_match(const wire::Endpoint& endpoint, const wire::Secret& secret,
                           const MatchTerms& terms, const Deadline& deadline);
/// Connections without a proof, or of another match, are closed without ending the wait.
wire::Socket accept_match(const wire::Socket& listening, const wire::Secret& secret, const MatchTerms& terms,
                          const Deadline& deadline);

/// There, and back. Enough after `patience_s`, but for the fewest messages.
std::pair<Link, Link> drive_match(const wire::Socket& socket, double patience_s, const Deadline& deadline);
void answer_match(const wire::Socket& socket, const Deadline& deadline);

}  // namespace trireme::topology
