#pragma once
// A receiver of a partition's log: the next of the chain, or the learner. Tracks its position, sends missing
// records, and sends again those that were not acknowledged in time. One thread.

#include <cstdint>

#include "trireme/ps/internal/partition_log.h"
#include "trireme/ps/internal/partition_outbox.h"

namespace trireme::ps {

class Follower {
 public:
  Follower(ServerId server, PartitionId partition, Epoch epoch, PartitionOutbox& outbox)
      : server_(server),
        partition_(partition),
        epoch_(epoch),
        outbox_(&outbox),
        progress_ns_(outbox.now_ns()) {}

  ServerId server() const { return server_; }
  /// Whether it has reported its position.
  bool known() const { return known_; }
  Version received() const { return received_; }
  /// When it last got on, or began to owe an answer.
  std::int64_t progress_ns() const { return progress_ns_; }

  /// Asks for its position, and whether it has this epoch.
  void ask(const PartitionLog& log, std::int64_t asked_ns);
  /// Sends records that were not sent yet, once its position is known.
  void send_new(const PartitionLog& log, std::int64_t asked_ns);
  void on_ack(const ReplicateAck& ack);
  /// Everything that was not acknowledged goes again: the connection is new, or too much time has passed.
  void send_again(const PartitionLog& log, std::int64_t asked_ns);
  /// It begins after this version, which it got in another way.
  void starts_after(Version version);

 private:
  void send_unsent(const PartitionLog& log, std::int64_t asked_ns);

  ServerId server_;
  PartitionId partition_;
  Epoch epoch_;
  PartitionOutbox* outbox_;
  bool known_ = false;
  Version received_ = 0, sent_ = 0;
  std::int64_t progress_ns_;
};

}  // namespace trireme::ps
