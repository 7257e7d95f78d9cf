#pragma once
// The messages and queries of a partition to its node. It calls nothing else, so that a
// partition may live on any thread whose node passes these on.

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/cluster_map.h"
#include "trireme/ps/messages.h"
#include "trireme/ps/status.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

/// A part of a checkpoint that a worker has asked for with a pull.
struct SaveTask {
  wire::ConnectionId connection = 0;
  WorkerLife life;
  PullReply reply;
  PartContents part;
};

class PartitionOutbox {
 public:
  virtual ~PartitionOutbox() = default;
  virtual void answer(wire::ConnectionId connection, wire::Message message) = 0;
  /// Consecutive replies may go together.
  virtual void reply(wire::ConnectionId connection, const Reply& reply) = 0;
  /// Messages without a connection are lost; Partition::on_server_connected follows when there is one.
  virtual void to_server(ServerId server, wire::Message message) = 0;
  virtual void to_coordinator(wire::Message message) = 0;
  /// A message was of a later epoch.
  virtual void map_is_old() = 0;
  virtual const ClusterMap& map() const = 0;
  virtual std::int64_t now_ns() const = 0;
  /// Until then the coordinator does not replace a server with the only copy of a partition.
  virtual std::int64_t lease_until_ns() const = 0;
  /// Whether so many bytes may go to learners now; they are then counted.
  virtual bool may_copy(std::size_t bytes) = 0;
  /// The part is to be written, and its requester to be notified.
  virtual void save(SaveTask task) = 0;
  /// Something came that no correct peer sends.
  virtual void rejected(const std::string& what) = 0;
  /// Of all partitions of one owner, which add to it.
  virtual PartitionCounts& counts() = 0;
};

}  // namespace trireme::ps
