#pragma once
// The owners of a server's partitions, seen from its loop. Each partition belongs to one owner. Each owner
// has a queue and takes up to a batch from it before it acts. So pushes to one chunk become one update. With
// threads, each owner has its own. Without, the one owner runs the same code on the node's thread when its
// surroundings call it. Short work is done on the node's thread while the owner's sleeps: that takes less
// time than waking it.
//
// A connection that fills an owner's queue is paused until that owner has room. So a queue holds at most its
// limits, one message of each connection, and the events of the loop itself.
//
// The node's thread, except for report(). Outputs of owners are handled there, too; an exception of an owner
// is thrown there.

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "trireme/ps/internal/partition_owner.h"

namespace trireme::ps {

struct OwnerPoolOptions {
  int num_threads = 0;
  QueueLimits queue;
  std::size_t most_batch_items = 256, most_batch_bytes = 32 << 20;
  PartitionOptions partition;
};

class OwnerPool {
 public:
  OwnerPool(const OwnerPoolOptions& options, ServerFacts& facts, std::function<void(OwnerOutput)> on_output);
  ~OwnerPool();
  OwnerPool(const OwnerPool&) = delete;
  OwnerPool& operator=(const OwnerPool&) = delete;

  /// Before everything below. The surroundings outlive the pool.
  void start(wire::Surroundings& surroundings);
  /// To the owner of the partition, from `event->connection`.
  void give(PartitionId partition, std::unique_ptr<OwnerEvent> event);
  /// To the owners of their partitions.
  void give(const Ticks& ticks, wire::ConnectionId connection);
  /// To all owners; each gets the partitions that are its own.
  void notify_map(const MapEvent& map);
  void notify_connected(ServerId server);
  /// `server`: at its other end, where it was made from here.
  void notify_closed(wire::ConnectionId connection, ServerId server);
  void tick();

  /// From any thread; waits for the owner.
  ReplicaReport report(PartitionId partition) const;
  /// `done` is called later, on the node's thread, with the status of all owners; never when one has failed.
  void ask_status(std::function<void(const HeldStatus&)> done);
  std::uint64_t num_pauses() const { return num_pauses_; }
  /// Events that were done on the node's thread although their owner has one.
  std::uint64_t num_done_at_once() const;

 private:
  class Worker;
  /// Outputs of owners so far. On the node's thread.
  struct Gathered {
    HeldStatus held;
    std::size_t num_missing = 0;
    std::function<void(const HeldStatus&)> done;
  };
  Worker& of(PartitionId partition) const { return *workers_[partition % workers_.size()]; }
  void give(Worker& worker, std::unique_ptr<OwnerEvent> event);
  void resume_paused_by(const Worker& worker);

  std::function<void(OwnerOutput)> on_output_;
  wire::Surroundings* surroundings_ = nullptr;
  std::uint64_t num_pauses_ = 0;
  std::map<wire::ConnectionId, const Worker*> paused_;  ///< and the owner that paused it
  std::shared_ptr<OwnerPool*> self_;                    ///< posted work outlives the pool, and checks here
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace trireme::ps
