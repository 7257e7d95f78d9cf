#pragma once
// A partition on one server: what its primary does with requests and pulls, on top of a Replica. A request is
// acknowledged when its record is stable; a pull is answered with a state that is stable, of a chain that was
// whole a short while ago, and that has every step which the table's staleness asks for. It is told of
// messages and tells of others through its PartitionOutbox, so it may live on any one thread.
//
// What it is told it takes in; go_on() does what can be done then. So whoever tells it several things before
// one go_on() has pushes to the same chunk merged and applied once.

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
  Version most_under_way = 4;  ///< records; what comes meanwhile is merged into the next one
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
  /// Behind one of the calls above, or several. Does whatever can be done now.
  void go_on();
  /// Nothing is under way: no tick would do anything before it is told of something.
  bool is_idle() const;

  const Replica& replica() const { return replica_; }
  /// That wait for other workers' steps.
  std::size_t num_parked_pulls() const { return waiting_pulls_.size(); }

 private:
  struct Asker {
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
  ErrorKind refusal(const Request& request, wire::Buffer& body) const;
  ErrorKind refusal(const Pull& pull, const wire::Buffer& body) const;
  ErrorKind standing_refusal(const Request& request) const;
  void reply(const Asker& asker, ErrorKind error, Version version) const;
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
  std::map<Version, std::vector<Asker>> unacknowledged_;
  std::deque<WaitingPull> waiting_pulls_;
  std::deque<ReadyPull> ready_pulls_;  ///< by version
};

}  // namespace trireme::ps
