#pragma once
// Makes the next record of a partition of the requests that wait: which of them may be logged now, in which
// order their values are added, what they come to. Equal requests give equal records, whatever order they
// came in. Functions without state of their own.

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
  wire::Buffer body;  ///< of a chunk: encoded as the table says
};
/// By worker and sequence: the order of sums.
using WaitingRequests = std::map<std::pair<WorkerLife, Sequence>, WaitingRequest>;

struct NextRecord {
  LogEntry entry;
  std::vector<std::pair<WorkerLife, Sequence>> taken;  ///< of the waiting ones
};

/// Empty when nothing can be logged. A worker's requests are looked at in its order, up to the first that has
/// not come. What is pushed to tables that apply at clocks waits, with the tick after it, until all workers
/// have ended its step; so a tick is never logged before what was pushed before it.
std::optional<NextRecord> next_record(const PartitionState& state, const ClusterMap& map,
                                      const WaitingRequests& waiting);

}  // namespace trireme::ps
