#pragma once
// One replica of a partition: its state, its log, its place in the chain. Chain replication (van Renesse and
// Schneider, OSDI 2004) under a coordinator that hands out epochs (PacificA: Lin et al., MSR-TR-2008-25):
//
//   the primary appends a record; each replica applies it and passes it on; the version of the last replica
//   is stable, and acknowledgements go back up the chain. A replica rejects messages of another epoch than
//   its own.
//
// So a stable version is on all replicas of the chain, and a primary that was deposed makes nothing stable
// any more. A primary alone needs the coordinator's lease to call something stable. One thread.

#include <cstdint>
#include <optional>
#include <utility>

#include "trireme/ps/internal/learner_feed.h"
#include "trireme/ps/internal/partition_log.h"
#include "trireme/ps/internal/partition_outbox.h"
#include "trireme/ps/internal/partition_state.h"

namespace trireme::ps {

struct ReplicationOptions {
  double retry_s = 0.3;    ///< interval after which an unacknowledged message is sent again
  double suspect_s = 1.5;  ///< a next one that acknowledges nothing for so long is reported
  double confirmed_s = 2;  ///< a primary without a message of its chain for so long answers no pull
};

class Replica {
 public:
  Replica(PartitionId partition, PartitionOutbox& outbox, const ReplicationOptions& options)
      : partition_(partition), outbox_(outbox), options_(options) {}

  /// Takes the roles of a later epoch.
  void adopt(const PartitionEntry& entry, ServerId self);

  bool is_primary() const { return role_ == Role::kReplica && is_first_; }
  bool is_learner() const { return role_ == Role::kLearner; }
  /// Version of the learner that gets its copy from here; empty where there is none.
  std::optional<Version> learner_received() const {
    return feed_ ? std::optional(feed_->received()) : std::nullopt;
  }
  /// Number of records that the next of the chain lacks, by its last report; empty where there is none.
  std::optional<std::pair<ServerId, Version>> next_lacks() const {
    if (!next_) return std::nullopt;
    return std::pair(next_->server(),
                     next_->known() ? state_.version() - next_->received() : num_under_way());
  }
  bool holds_all() const { return role_ == Role::kReplica || (role_ == Role::kLearner && !installing_); }
  Epoch epoch() const { return epoch_; }
  const PartitionState& state() const { return state_; }
  Version stable() const { return stable_; }
  /// Records that are not stable yet.
  Version num_under_way() const { return state_.version() - stable_; }
  /// Whether the chain is known to have been whole a short while ago, so that no other primary answers.
  bool is_confirmed() const;
  /// Asks the chain; on_ack brings the answer.
  void confirm();
  /// The version, after the stable one, of the record that holds this request; 0 when it is stable.
  Version version_of(const WorkerLife& life, Sequence sequence) const;

  /// Primary only: the next version.
  void append(LogEntry entry);

  void on_replicate(wire::ConnectionId from, const Replicate& head, const wire::Buffer& body);
  void on_ack(ServerId from, const ReplicateAck& ack);
  void on_snapshot_part(wire::ConnectionId from, const SnapshotPart& head, const wire::Buffer& body);
  void on_snapshot_ack(ServerId from, const SnapshotAck& ack);
  void on_connected(ServerId server);
  void on_tick();
  /// It waits for no replica, and has nothing to send again.
  bool is_idle() const;

 private:
  enum class Role : std::uint8_t { kNone, kReplica, kLearner };

  void forget();
  void take(LogEntry entry);
  void settle();
  void look_at_learner();
  void answer(wire::ConnectionId to, ErrorKind error) const;
  void acknowledge_upstream() const;
  void trim();
  template <class News>
  void notify_coordinator(ServerId server) const;

  PartitionId partition_;
  PartitionOutbox& outbox_;
  ReplicationOptions options_;

  Epoch epoch_ = 0;
  Role role_ = Role::kNone;
  bool is_first_ = false;
  Epoch learner_since_ = 0;
  PartitionState state_;
  PartitionLog log_;
  Version stable_ = 0;
  std::int64_t confirmed_ns_ = 0;  ///< time of the primary's last request that the whole chain has answered

  std::optional<Follower> next_;
  std::optional<LearnerFeed> feed_;
  wire::ConnectionId upstream_ = 0;  ///< where the last record came from
  std::int64_t upstream_asked_ns_ = 0;
  std::int64_t retried_ns_ = 0, suspected_ns_ = 0;
  std::int64_t asking_since_ns_ = 0;  ///< the primary waits for the chain's word; 0: it does not

  bool installing_ = false;  ///< a learner that has parts of a snapshot
  std::uint32_t num_parts_ = 0;
};

}  // namespace trireme::ps
