#pragma once
// Messages between the nodes of a parameter server: the kinds, and the fields of their heads. Bodies are
// named where there are any. docs/parameter-server.md has them as a table. Values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "trireme/ps/cluster_map.h"
#include "trireme/ps/ids.h"
#include "trireme/wire/fields.h"
#include "trireme/wire/message.h"

namespace trireme::ps {

enum class MessageKind : std::uint16_t {
  kHeartbeat = 1,  ///< any member -> coordinator
  kHeartbeatReply,
  kMapChange,    ///< coordinator -> any member; body: MapChange
  kCreateTable,  ///< worker -> coordinator
  kTableCreated,
  kPing,  ///< coordinator -> server: is the process there?
  kPong,
  kCaughtUp,  ///< server -> coordinator: the learner has everything
  kDrained,   ///< server -> coordinator: all replicas are at one version and nothing is under way
  kSuspect,   ///< server -> coordinator: the next of the chain does not answer
  kRequest,   ///< worker -> primary; body: values
  kReply,
  kPull,       ///< worker -> primary
  kPullReply,  ///< body: values
  kReplicate,  ///< down the chain, and to the learner; body: LogRecord, values
  kReplicateAck,
  kSnapshotPart,  ///< to the learner; body: values and optimizer state
  kSnapshotAck,
  kStatus,       ///< any peer -> coordinator, server: requests its status
  kStatusReply,  ///< body: ClusterStatus of a coordinator, ServerStatus of a server
  kBeginAnew,    ///< worker -> coordinator: lost partitions are to be there again, empty
  kTicks,        ///< worker -> primary of several partitions
  kReplies,      ///< to requests of several partitions
  kLast = kReplies,
};
/// As counters and messages name them.
std::string_view name_of(MessageKind kind);

/// Why something was not done. All but kNone leave the asker's next move open: the client decides.
enum class ErrorKind : std::uint8_t {
  kNone,
  kTimeout,     ///< no answer by the deadline: the push may still be applied, once
  kWrongEpoch,  ///< the asker's map is old, or the answerer's
  kNotNow,      ///< roles are changing: ask again
  kOverloaded,  ///< the asker has more under way than it may have
  kTooLarge,    ///< more than a message may hold
  kUnknownTable,
  kOutOfRange,    ///< a chunk, a count or a size that the table does not have
  kMalformed,     ///< no message of this protocol
  kDeclaredDead,  ///< the cluster has removed this worker: unacknowledged requests are in doubt
  kDataLoss,      ///< all replicas of a partition have ended
  kNotSaved,      ///< the part of a checkpoint could not be written
  kUnknownKeys,   ///< the hash of keys that this connection has not sent, or too long ago: send them
  kLast = kUnknownKeys,
};
std::string_view name_of(ErrorKind kind);

/// The role of a member of the cluster.
enum class Role : std::uint8_t { kServer, kWorker, kLast = kWorker };

/// How far a partition is, by the records of its log.
struct PartitionVersion {
  PartitionId partition = 0;
  Version version = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.version);
  }
};

/// Says everything each time: the first registers, and a coordinator that has forgotten learns it again.
struct Heartbeat {
  static constexpr MessageKind kKind = MessageKind::kHeartbeat;
  Role role = Role::kServer;
  std::string name;
  Incarnation incarnation = 0;
  std::string host;
  wire::Address address;
  double weight = 1;
  WorkerId worker = 0;
  bool leaving = false;
  MapVersion registered_at = 0;  ///< a worker that the map had, and has not any more, was declared dead
  MapVersion map_version = 0;
  std::int64_t sent_ns = 0;  ///< on the sender's clock; comes back
  std::uint64_t barrier_entered = 0, barrier_passed = 0;
  std::uint32_t barrier_workers = 0;  ///< how many must have come at least
  std::vector<PartitionVersion> versions;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.role, self.name, self.incarnation, self.host, self.address, self.weight, self.worker,
                    self.leaving, self.registered_at, self.map_version, self.sent_ns, self.barrier_entered,
                    self.barrier_passed, self.barrier_workers, self.versions);
  }
};

/// Whether a member's description is valid: the cluster announces it, places by it, and connects to it.
bool is_sound(const Heartbeat& heartbeat);

/// Reply to a Heartbeat: renews the lease, with urgent facts for the sender.
struct HeartbeatReply {
  static constexpr MessageKind kKind = MessageKind::kHeartbeatReply;
  std::int64_t sent_ns = 0;
  double lease_s = 0;
  bool declared_dead = false;
  bool released = false;           ///< nothing of the cluster needs the sender any more
  std::uint64_t barrier_open = 0;  ///< all up to this one may be passed
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.sent_ns, self.lease_s, self.declared_dead, self.released, self.barrier_open);
  }
};

/// A worker asks for a table, which may be there already.
struct CreateTable {
  static constexpr MessageKind kKind = MessageKind::kCreateTable;
  RequestId request = 0;
  TableSpec spec;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.request, self.spec);
  }
};

/// To a CreateTable.
struct TableCreated {
  static constexpr MessageKind kKind = MessageKind::kTableCreated;
  RequestId request = 0;
  TableId table = 0;
  std::string rejection;  ///< empty where it was created, or was there
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.request, self.table, self.rejection);
  }
};

/// A worker that restores a checkpoint asks that lost partitions be there again, empty.
struct BeginAnew {
  static constexpr MessageKind kKind = MessageKind::kBeginAnew;
  WorkerLife life;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.life);
  }
};

/// The coordinator asks whether a server's process is there, and still the same one.
struct Ping {
  static constexpr MessageKind kKind = MessageKind::kPing;
  Incarnation incarnation = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.incarnation);
  }
};
/// To a Ping, with the incarnation of the answering server.
struct Pong : Ping {
  static constexpr MessageKind kKind = MessageKind::kPong;
};

/// A server's report to the coordinator on one partition.
struct PartitionNews {
  PartitionId partition = 0;
  Epoch epoch = 0;
  ServerId server = kNoServer;  ///< the learner that has caught up, the one that is suspected
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.epoch, self.server);
  }
};
/// The learner of the partition has everything, and can be in the chain.
struct CaughtUp : PartitionNews {
  static constexpr MessageKind kKind = MessageKind::kCaughtUp;
};
/// All replicas of the partition are at one version, and nothing is under way: roles may change.
struct Drained : PartitionNews {
  static constexpr MessageKind kKind = MessageKind::kDrained;
};
/// The next of the partition's chain does not answer.
struct Suspect : PartitionNews {
  static constexpr MessageKind kKind = MessageKind::kSuspect;
};

/// Requests of a worker that change a partition. All are numbered in one sequence.
enum class RequestOp : std::uint8_t {
  kJoin,         ///< always the first: the worker counts from now on
  kPush,         ///< gradients, or values for the table's rule
  kAssign,       ///< values as they are, and the optimizer's state with them or as it begins
  kTick,         ///< all steps below `clock` are ended
  kLeave,        ///< the worker does not count any more
  kRestoreRows,  ///< rows of a sparse table with all that belongs to them (internal/restored_rows.h)
  kLast = kRestoreRows,
};
/// Whether it has a body, for a table.
inline bool changes_values(RequestOp op) {
  return op == RequestOp::kPush || op == RequestOp::kAssign || op == RequestOp::kRestoreRows;
}

/// A worker's request that changes a partition, to its primary. Body: values. It is sent again under the same
/// number until it is answered, and counts once.
struct Request {
  static constexpr MessageKind kKind = MessageKind::kRequest;
  PartitionId partition = 0;
  Epoch epoch = 0;
  WorkerLife life;
  MapVersion registered_at = 0;
  Sequence sequence = 0;
  RequestOp op = RequestOp::kPush;
  WorkerClock clock = 0;
  TableId table = 0;
  std::uint64_t chunk = 0;
  double lr = kTableRate;         ///< of a push: with which it is applied
  std::uint64_t num_updates = 0;  ///< of an assignment with state: how many that one has seen
  std::uint64_t keys = 0;         ///< hash of the keys that the body lacks; 0: it has them
  std::uint32_t num_workers = 0;  ///< of a join: ClientOptions::num_workers
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.epoch, self.life, self.registered_at, self.sequence, self.op,
                    self.clock, self.table, self.chunk, self.lr, self.num_updates, self.keys,
                    self.num_workers);
  }
};

/// To a Request: done, or why not, and how far the partition is.
struct Reply {
  static constexpr MessageKind kKind = MessageKind::kReply;
  PartitionId partition = 0;
  Sequence sequence = 0;
  Incarnation incarnation = 0;
  ErrorKind error = ErrorKind::kNone;
  Epoch epoch = 0;
  Version version = 0;
  WorkerClock min_clock = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.sequence, self.incarnation, self.error, self.epoch, self.version,
                    self.min_clock);
  }
};

/// Replies of a server that go to one worker together.
struct Replies {
  static constexpr MessageKind kKind = MessageKind::kReplies;
  std::vector<Reply> replies;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.replies);
  }
};

/// Requests of RequestOp::kTick to partitions with the same primary. They are ordered by their sequences:
/// this message may overtake earlier pushes, or come after later pushes.
struct Ticks {
  static constexpr MessageKind kKind = MessageKind::kTicks;
  /// The end of a worker's step at one partition.
  struct Tick {
    PartitionId partition = 0;
    Epoch epoch = 0;
    Sequence sequence = 0;
    WorkerClock clock = 0;
    template <class Self>
    static auto fields(Self& self) {
      return std::tie(self.partition, self.epoch, self.sequence, self.clock);
    }
  };
  WorkerLife life;
  MapVersion registered_at = 0;
  std::vector<Tick> ticks;

  /// The Request that is equivalent to the tick.
  Request request(const Tick& tick) const {
    Request request;
    request.partition = tick.partition;
    request.epoch = tick.epoch;
    request.life = life;
    request.registered_at = registered_at;
    request.sequence = tick.sequence;
    request.op = RequestOp::kTick;
    request.clock = tick.clock;
    return request;
  }
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.life, self.registered_at, self.ticks);
  }
};

/// A worker requests values from a primary, which include its own requests, and all workers' steps within the
/// table's staleness.
struct Pull {
  static constexpr MessageKind kKind = MessageKind::kPull;
  RequestId request = 0;
  PartitionId partition = 0;
  Epoch epoch = 0;
  WorkerLife life;
  WorkerClock clock = 0;
  Sequence after = 0;  ///< the worker's own requests that the values must hold
  TableId table = 0;
  std::uint64_t chunk = 0;
  Version newer_than = 0;       ///< values only if they have changed since
  bool with_state = false;      ///< the optimizer's state after the values
  std::string save_in = {};     ///< a folder: the whole partition is written there instead
  wire::Priority priority = 4;  ///< of the answer with values
  std::uint64_t keys = 0;       ///< hash of the keys that the body lacks; 0: it has them
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.request, self.partition, self.epoch, self.life, self.clock, self.after, self.table,
                    self.chunk, self.newer_than, self.with_state, self.save_in, self.priority, self.keys);
  }
};

/// The body is the values. For a save: a SavedPart (checkpoint_file.h), or the reason of the failure.
struct PullReply {
  static constexpr MessageKind kKind = MessageKind::kPullReply;
  RequestId request = 0;
  ErrorKind error = ErrorKind::kNone;
  bool changed = true;
  Epoch epoch = 0;
  Version version = 0;  ///< of the partition; a later pull passes it as newer_than
  WorkerClock min_clock = 0;
  std::uint64_t num_updates = 0;  ///< that the values have had
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.request, self.error, self.changed, self.epoch, self.version, self.min_clock,
                    self.num_updates);
  }
};

/// One request of a record.
struct LoggedRequest {
  WorkerLife life;
  Sequence sequence = 0;
  RequestOp op = RequestOp::kPush;
  WorkerClock clock = 0;
  MapVersion registered_at = 0;
  std::uint32_t num_workers = 0;  ///< of a join
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.life, self.sequence, self.op, self.clock, self.registered_at, self.num_workers);
  }
};

/// A record's update of one chunk; the values are in the body one after the other.
struct LoggedUpdate {
  TableId table = 0;
  RequestOp op = RequestOp::kPush;  ///< one that changes values
  std::uint64_t chunk = 0;
  std::uint64_t num_bytes = 0;
  double lr = kTableRate;
  std::uint64_t num_updates = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.table, self.op, self.chunk, self.num_bytes, self.lr, self.num_updates);
  }
};

/// One step of a partition's state. All replicas take the same steps in the same order.
struct LogRecord {
  std::vector<TableSpec> tables;  ///< those that are new to the state
  std::vector<LoggedRequest> requests;
  std::vector<WorkerLife> removed;
  std::vector<LoggedUpdate> updates;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.tables, self.requests, self.removed, self.updates);
  }
};

/// A record of a partition's log, on its way down the chain and to the learner. Body: LogRecord, padding,
/// values.
struct Replicate {
  static constexpr MessageKind kKind = MessageKind::kReplicate;
  PartitionId partition = 0;
  Epoch epoch = 0;
  bool has_record = false;         ///< else it only asks whether the chain holds
  Version version = 0;             ///< of the record, or of the sender's state
  std::int64_t asked_ns = 0;       ///< on the primary's clock; comes back
  std::uint32_t record_bytes = 0;  ///< of the body: a LogRecord, then padding, then its values
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.epoch, self.has_record, self.version, self.asked_ns,
                    self.record_bytes);
  }
};

/// To a Replicate: how far the sender, and all later replicas of the chain, are.
struct ReplicateAck {
  static constexpr MessageKind kKind = MessageKind::kReplicateAck;
  PartitionId partition = 0;
  Epoch epoch = 0;
  ErrorKind error = ErrorKind::kNone;  ///< kWrongEpoch; kNotNow: send again from after `received`
  Version received = 0;                ///< last version at the sender
  Version stable = 0;                  ///< which all later replicas of the chain have, too
  std::int64_t asked_ns = 0;           ///< of the last Replicate that has been down the whole chain
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.epoch, self.error, self.received, self.stable, self.asked_ns);
  }
};

/// A part of a partition's state, for its learner. Body: values and optimizer state of some chunks.
struct SnapshotPart {
  static constexpr MessageKind kKind = MessageKind::kSnapshotPart;
  PartitionId partition = 0;
  Epoch epoch = 0;
  Version version = 0;                      ///< of the state that all parts are of
  std::uint32_t number = 0, num_parts = 0;  ///< part 0 is everything but the tables' contents, in the body
  TableId table = 0;
  std::uint64_t chunk = 0;
  Version changed_at = 0;
  std::uint64_t num_updates = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.epoch, self.version, self.number, self.num_parts, self.table,
                    self.chunk, self.changed_at, self.num_updates);
  }
};

/// To SnapshotPart: how many parts have come.
struct SnapshotAck {
  static constexpr MessageKind kKind = MessageKind::kSnapshotAck;
  PartitionId partition = 0;
  Epoch epoch = 0;
  Version version = 0;
  std::uint32_t num_received = 0;  ///< parts from the first on
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.epoch, self.version, self.num_received);
  }
};

/// Requests the status of a coordinator or a server; any peer may send it.
struct Status {
  static constexpr MessageKind kKind = MessageKind::kStatus;
  RequestId request = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.request);
  }
};
/// To a Status. Body: ClusterStatus of a coordinator, ServerStatus of a server.
struct StatusReply : Status {
  static constexpr MessageKind kKind = MessageKind::kStatusReply;
};

inline constexpr wire::Priority kUrgent = 0;  ///< for messages that keep members alive
inline constexpr wire::Priority kBackground =
    7;  ///< copies for learners: after everything that a caller waits for

/// The message of that head, whose kind is the head's.
template <class Head>
wire::Message message_of(const Head& head, wire::Buffer body = {}, wire::Priority priority = 4) {
  return {static_cast<std::uint16_t>(Head::kKind), priority, wire::encode(head), std::move(body)};
}

/// Empty when the message is of another kind, or its head is none of this kind.
template <class Head>
std::optional<Head> head_of(const wire::Message& message) {
  if (message.kind != static_cast<std::uint16_t>(Head::kKind)) return std::nullopt;
  return wire::decode<Head>(message.head);
}

}  // namespace trireme::ps
