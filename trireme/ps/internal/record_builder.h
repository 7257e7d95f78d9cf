#pragma once
// Makes the next record of a partition from its waiting requests: the requests that may be logged now, the
// order of their values, and their sum. Equal requests give equal records, for any order of arrival.
// Functions without state of their own.

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/ps/internal/partition_log.h"
#include "trireme/ps/internal/partition_state.h"

namespace trireme::ps {

struct WaitingRequest {
  wire::ConnectionId connection = 0;
  Request request;
  wire::Buffer body;  ///< of a chunk: encoded with the table's codec
};
/// By worker and sequence: the order of sums.
using WaitingRequests = std::map<std::pair<WorkerLife, Sequence>, WaitingRequest>;

struct NextRecord {
  LogEntry entry;
  std::vector<std::pair<WorkerLife, Sequence>> taken;  ///< of the waiting ones
};

/// Empty when nothing can be logged. A worker's requests are taken in its order, up to the first missing one.
/// Pushes to tables that apply at clocks wait, with the tick after them, until all workers have ended their
/// step; so a tick is never logged before earlier pushes.
std::optional<NextRecord> next_record(const PartitionState& state, const ClusterMap& map,
                                      const WaitingRequests& waiting);

}  // namespace trireme::ps
