#pragma once
// Makes a replica of a server without a copy, while the partition continues: a snapshot of one version part
// by part, no faster than the node allows, then the log from there. It is on the last of the chain. One
// thread.

#include <cstdint>
#include <vector>

#include "trireme/ps/internal/follower.h"
#include "trireme/ps/internal/partition_state.h"

namespace trireme::ps {

class LearnerFeed {
 public:
  LearnerFeed(ServerId learner, PartitionId partition, Epoch epoch, PartitionOutbox& outbox)
      : partition_(partition),
        epoch_(epoch),
        outbox_(&outbox),
        follower_(learner, partition, epoch, outbox) {}

  ServerId learner() const { return follower_.server(); }
  /// The log must be kept after this version.
  Version needs_after() const;
  /// From when it is near, nothing is stable that it has not: so it has all that is stable when it becomes a
  /// replica. It stays so until the roles change.
  bool counts() const { return counts_; }
  Version received() const { return follower_.received(); }
  std::int64_t progress_ns() const { return follower_.progress_ns(); }

  void ask(const PartitionLog& log) { follower_.ask(log, 0); }
  void on_ack(const ReplicateAck& ack, const PartitionState& state, const PartitionLog& log);
  void on_snapshot_ack(const SnapshotAck& ack, const PartitionLog& log);
  void send_new(const PartitionLog& log);
  /// Continues after the node allowed no more.
  void send_more();
  /// The connection is a new one: messages in transfer are lost.
  void begin_again(const PartitionLog& log);
  /// At least every `retry_ns`: messages in transfer on a living connection get this time, and each time
  /// more.
  void look_again(const PartitionLog& log, std::int64_t retry_ns);

 private:
  void send_again(const PartitionLog& log);
  void send_parts();
  std::size_t bytes_under_way() const;
  void look_how_near(Version last);

  enum class Phase : std::uint8_t { kAsking, kSnapshot, kLog };
  PartitionId partition_;
  Epoch epoch_;
  PartitionOutbox* outbox_;
  Follower follower_;
  Phase phase_ = Phase::kAsking;
  bool counts_ = false;
  std::vector<PartitionState::Part> parts_;
  std::vector<std::size_t> part_bytes_;  ///< of those that were sent
  std::uint32_t num_sent_ = 0, num_received_ = 0;
  std::int64_t heard_ns_ = 0;  ///< of progress, or when it was sent again
  int num_again_ = 0;          ///< how often since then
  Version snapshot_version_ = 0;
};

}  // namespace trireme::ps
