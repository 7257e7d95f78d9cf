#pragma once
// The events from the loop of a server to an owner of partitions: messages with parsed heads, and changes of
// connections, the map and time. One goes through a queue unchanged. A value.

#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/ps/cluster_map.h"
#include "trireme/ps/internal/mpsc_queue.h"
#include "trireme/ps/messages.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

class PartitionOwner;

struct TickEvent {};
struct StopEvent {};
struct ClosedEvent {};     ///< `connection`, to `server` where it was made from here
struct ConnectedEvent {};  ///< `server`
struct CallEvent {         ///< a query of the owner's state
  std::function<void(const PartitionOwner&)> call;
};
struct MapEvent {
  std::shared_ptr<const ClusterMap> members;  ///< without the partitions, which come by themselves
  ServerId self = kNoServer;
  std::vector<std::pair<PartitionId, PartitionEntry>> partitions;  ///< that changed
  bool has_lost_workers = false;                                   ///< some that the map before had
};

struct OwnerEvent final : MpscLink {
  using What = std::variant<Request, Ticks, Pull, Replicate, ReplicateAck, SnapshotPart, SnapshotAck,
                            ConnectedEvent, ClosedEvent, MapEvent, TickEvent, CallEvent, StopEvent>;
  What what;
  wire::ConnectionId connection = 0;  ///< that it came over
  ServerId server = kNoServer;        ///< at its other end, where it was made from here
  wire::Buffer body = {};

  explicit OwnerEvent(What its_what) : what(std::move(its_what)) {}
  std::size_t num_bytes() const {
    const auto* ticks = std::get_if<Ticks>(&what);
    const std::size_t more = ticks == nullptr ? 0 : ticks->ticks.size() * sizeof(Ticks::Tick);
    return sizeof(OwnerEvent) + body.size() + more;
  }
  /// Whether it takes less time than waking a thread: values of few bytes, or asking for values of a dense
  /// table, which are not copied.
  bool is_short() const {
    constexpr std::size_t kFewBytes = 16 << 10;
    if (const auto* pull = std::get_if<Pull>(&what)) return pull->save_in.empty() && body.empty();
    const auto* request = std::get_if<Request>(&what);
    return request != nullptr && request->op == RequestOp::kPush && body.size() <= kFewBytes;
  }
};

}  // namespace trireme::ps
