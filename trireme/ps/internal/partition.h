#pragma once
// A partition on one server: the primary's handling of requests and pulls, on top of a Replica. A request is
// acknowledged when its record is stable. A pull is answered with a stable state of a chain that was whole a
// short while ago. That state has every step which the table's staleness requires. It receives messages and
// sends others through its PartitionOutbox, so it may run on any one thread.
//
// Messages are queued; go_on() processes those that can be processed then. So pushes to the same chunk that
// arrive before one go_on() are merged and applied once.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "trireme/ps/internal/record_builder.h"
#include "trireme/ps/internal/replica.h"

namespace trireme::ps {

struct PartitionOptions {
  ReplicationOptions replication;
  Version most_under_way = 4;  ///< records; later requests are merged into the next one
};

class Partition {
 public:
  Partition(PartitionId id, PartitionOutbox& outbox, const PartitionOptions& options)
      : id_(id), outbox_(outbox), options_(options), replica_(id, outbox, options.replication) {}

  /// The map has changed: perhaps the roles, perhaps the workers.
  void on_map(const PartitionEntry& entry, ServerId self);
  void on_request(wire::ConnectionId from, const Request& request, wire::Buffer body);
  void on_pull(wire::ConnectionId from, const Pull& pull, const wire::Buffer& body);
  void on_replicate(wire::ConnectionId from, const Replicate& head, const wire::Buffer& body);
  void on_replicate_ack(ServerId from, const ReplicateAck& ack);
  void on_snapshot_part(wire::ConnectionId from, const SnapshotPart& head, const wire::Buffer& body);
  void on_snapshot_ack(ServerId from, const SnapshotAck& ack);
  void on_server_connected(ServerId server);
  void on_worker_closed(wire::ConnectionId connection);
  void on_tick();
  /// Call it after one of the calls above, or several. Does all work that is possible now.
  void go_on();
  /// Nothing is under way: no tick does anything before the next message.
  bool is_idle() const;

  const Replica& replica() const { return replica_; }
  /// That wait for other workers' steps.
  std::size_t num_parked_pulls() const { return waiting_pulls_.size(); }

 private:
  struct Requester {
    wire::ConnectionId connection = 0;
    WorkerLife life;
    Sequence sequence = 0;
  };
  struct WaitingPull {
    wire::ConnectionId connection = 0;
    Pull pull;
    wire::Buffer keys;  ///< of a sparse table
  };
  struct ReadyPull {
    wire::ConnectionId connection = 0;
    PullReply reply;
    wire::Buffer values;
    WorkerLife life;
    wire::Priority priority = 4;
    std::optional<PartContents> part = {};  ///< is written instead
  };

  /// Where it is none, rows are as they were before they were encoded.
  ErrorKind rejection(const Request& request, wire::Buffer& body) const;
  ErrorKind rejection(const Pull& pull, const wire::Buffer& body) const;
  ErrorKind membership_error(const Request& request) const;
  void reply(const Requester& requester, ErrorKind error, Version version) const;
  void reply(wire::ConnectionId to, const Pull& pull, ErrorKind error) const;
  wire::Buffer encoded(const TableSpec& spec, const Pull& pull,
                       const PartitionState::Contents& contents) const;
  bool may_be_answered(const Pull& pull) const;
  void read(const WaitingPull& waiting);

  void log_waiting();
  void acknowledge_stable();
  void look_at_pulls();
  void answer_pulls();

  PartitionId id_;
  PartitionOutbox& outbox_;
  PartitionOptions options_;
  Replica replica_;
  bool draining_ = false;

  WaitingRequests waiting_;
  std::map<Version, std::vector<Requester>> unacknowledged_;
  std::deque<WaitingPull> waiting_pulls_;
  std::deque<ReadyPull> ready_pulls_;  ///< by version
};

}  // namespace trireme::ps
