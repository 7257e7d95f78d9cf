#pragma once
// Measures latency and bandwidth between the ranks of a world, over TCP connections of its own: half the
// median round trip of a few small messages, and larger and larger messages each way until one takes much
// longer than the latency. Pairs meet in the rounds of tournament(), which begin together, so that no
// measured rank waits for a third. Both ends of a connection prove that they have the job's secret. Every
// step has a deadline. A link that is rejected, silent or lost ends the probe on all ranks at the end of its
// round, with the pair's names.

#include <string>

#include "trireme/topology/link_table.h"
#include "trireme/topology/meeting.h"

namespace trireme::topology {

struct ProbeOptions {
  std::string address;  ///< of this host, where the others reach it
  wire::Secret secret;
  std::string host_id;       ///< equal on ranks that share a host
  double timeout_s = 5;      ///< of a pair, however many messages
  double patience_s = 0.03;  ///< after which a pair has measured enough, but for the fewest messages
};

/// The same table on every rank. Throws CommError, on all ranks; InvalidArgument where other hosts reach the
/// address and the secret is empty.
LinkTable probe_links(Meeting& meeting, const ProbeOptions& options);

}  // namespace trireme::topology
