#pragma once
// Membership, and the servers of each partition: decided by the coordinator, known to all members. It changes
// by MapChange, which the coordinator writes to its log and sends to the members. Values.

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/ps/ids.h"
#include "trireme/ps/table.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

/// A server in the map.
struct ServerEntry {
  enum class State : std::uint8_t {
    kUp,
    kLeaving,  ///< gives its partitions away
    kDown,     ///< it sends nothing; it may come back with its partitions
    kGone,     ///< this process has ended
    kLast = kGone,
  };
  ServerId id = kNoServer;
  std::string name;  ///< of the place: a process that is started again under it replaces the old one
  Incarnation incarnation = 0;
  std::string host;
  wire::Address address;
  double weight = 1;
  State state = State::kUp;

  bool may_hold() const { return state == State::kUp || state == State::kLeaving; }
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.name, self.incarnation, self.host, self.address, self.weight, self.state);
  }
};

/// Roles of one partition. Chain replication (van Renesse and Schneider, OSDI 2004): the first is the
/// primary, updates go down the chain and acknowledgements up, the last feeds the learner. The updates of a
/// replica are a prefix of those of the one before it.
struct PartitionEntry {
  Epoch epoch = 0;
  std::vector<ServerId> chain;   ///< empty: not placed yet, or lost
  ServerId learner = kNoServer;  ///< will be the end of the chain when it has everything
  Epoch learner_since = 0;       ///< a learner that missed a change begins again
  bool draining = false;         ///< the primary takes nothing new: the order of the chain will change
  bool lost = false;             ///< every replica has ended
  Version lost_version = 0;      ///< the last that was reported to the coordinator
  Epoch begun = 0;               ///< lost and started again, empty: older state is invalid

  ServerId primary() const { return chain.empty() ? kNoServer : chain.front(); }
  bool operator==(const PartitionEntry&) const = default;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.epoch, self.chain, self.learner, self.learner_since, self.draining, self.lost,
                    self.lost_version, self.begun);
  }
};

/// A worker that lives, and the version of the map in which it was taken up.
struct WorkerEntry {
  WorkerLife life;
  MapVersion registered_at = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.life, self.registered_at);
  }
};

/// The change from map version `from` to version `to`.
struct MapChange {
  MapVersion from = 0, to = 0;
  std::uint32_t num_partitions = 0, num_replicas = 0;
  ServerId next_server = 1;
  std::vector<ServerEntry> servers;                  ///< all
  std::vector<WorkerEntry> workers;                  ///< all that live
  std::vector<TableSpec> tables;                     ///< the new ones
  std::map<PartitionId, PartitionEntry> partitions;  ///< those that changed
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.from, self.to, self.num_partitions, self.num_replicas, self.next_server,
                    self.servers, self.workers, self.tables, self.partitions);
  }
};

struct ClusterMap {
  MapVersion version = 0;
  std::uint32_t num_replicas = 0;
  ServerId next_server = 1;  ///< the id that the next one gets
  std::map<ServerId, ServerEntry> servers;
  std::map<WorkerId, WorkerEntry> workers;
  std::map<TableId, TableSpec> tables;
  std::vector<PartitionEntry> partitions;

  /// Whether it followed: it does from this version, or from nothing.
  bool apply(const MapChange& change);
  /// All of it, as a change from nothing.
  MapChange whole() const;

  /// Whether this life of the worker, and not an earlier one, is in the map.
  bool lives(const WorkerLife& life) const;
  /// The entry of that name or number; null where there is none. It lives until the map changes.
  const TableSpec* table(const std::string& name) const;
  const ServerEntry* server(ServerId id) const;
  /// Where a chunk of a table belongs.
  PartitionId partition_of(TableId table, std::uint64_t key) const;
};

}  // namespace trireme::ps
