#pragma once
// The status of a coordinator and of a server, on request (messages.h, Status) and as metrics (metrics.h).
// Lists are cut at kMostListed, so an answer is small for any cluster; counts are of everything. Counts are
// since the process began. Values.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/ps/cluster_map.h"
#include "trireme/ps/messages.h"

namespace trireme::ps {

inline constexpr std::size_t kMostListed = 256;

/// Things that happen to a node's channels, by name; see wire::ChannelCounts.
using NamedCounts = std::map<std::string, std::uint64_t>;

/// How often small numbers came.
struct Histogram {
  static constexpr std::array<std::uint64_t, 10> kBounds = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};
  std::vector<std::uint64_t> buckets = std::vector<std::uint64_t>(kBounds.size() + 1);  ///< the last: above
  std::uint64_t sum = 0;

  /// Counts one more number, in the bucket of the least bound that is not below it.
  void add(std::uint64_t value);
  std::uint64_t count() const;
  Histogram& operator+=(const Histogram& other);
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.buckets, self.sum);
  }
};

/// Counts of requests of partitions. Written by the owner of the partitions.
struct PartitionCounts {
  std::uint64_t pushes = 0, push_bytes = 0;  ///< taken; those that came again are not counted again
  std::uint64_t pulls = 0, pull_bytes = 0;   ///< answered with values, or with the word that none are newer
  std::uint64_t records = 0;                 ///< that the primary has made
  Histogram requests_per_record;
  std::uint64_t apply_ns = 0;                   ///< of the primary's records
  Histogram staleness;                          ///< steps that a pull was ahead of the slowest worker
  std::map<ErrorKind, std::uint64_t> rejected;  ///< requests and pulls, by why

  PartitionCounts& operator+=(const PartitionCounts& other);
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.pushes, self.push_bytes, self.pulls, self.pull_bytes, self.records,
                    self.requests_per_record, self.apply_ns, self.staleness, self.rejected);
  }
};

/// The partitions that a server has in one role.
struct RoleStatus {
  std::uint64_t partitions = 0;
  Version highest_version = 0;
  Version most_lag = 0;  ///< records that are not known to be on all replicas, of the partition with the most

  /// Counts one more partition in that role.
  void add(Version version, Version lag);
  RoleStatus& operator+=(const RoleStatus& other);
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partitions, self.highest_version, self.most_lag);
  }
};

/// State of owners of partitions, one of them or all of a server.
struct HeldStatus {
  RoleStatus primary, backup, learner;
  RoleStatus feeding;  ///< partitions whose learner gets its copy from here, and its lag
  /// Servers that come next in chains: the most records of one partition that each is not known to have.
  std::map<ServerId, Version> lag;
  std::uint64_t rows = 0;                 ///< of sparse tables
  std::uint64_t elements = 0, bytes = 0;  ///< values; and with optimizer state
  std::uint64_t parked_pulls = 0;         ///< wait for other workers' steps
  std::uint64_t queued_items = 0, queued_bytes = 0;
  PartitionCounts counts;

  HeldStatus& operator+=(const HeldStatus& other);
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.primary, self.backup, self.learner, self.feeding, self.lag, self.rows, self.elements,
                    self.bytes, self.parked_pulls, self.queued_items, self.queued_bytes, self.counts);
  }
};

/// The status of a server.
struct ServerStatus {
  std::string name;
  MapVersion map_version = 0;
  HeldStatus held;
  std::uint64_t rejected_messages = 0;  ///< that no correct peer sends
  std::uint64_t bytes_copied = 0;       ///< to learners
  std::uint64_t pauses = 0;
  NamedCounts channels;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.name, self.map_version, self.held, self.rejected_messages, self.bytes_copied,
                    self.pauses, self.channels);
  }
};

/// A server as the map has it.
struct PlacedServer {
  ServerEntry entry;
  std::uint32_t primaries = 0, backups = 0, learners = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.entry, self.primaries, self.backups, self.learners);
  }
};

/// A coordinator's status of the cluster.
struct ClusterStatus {
  MapVersion map_version = 0;
  std::uint32_t num_partitions = 0, num_replicas = 0;
  std::uint32_t num_servers = 0, num_workers = 0, num_tables = 0;  ///< servers: without those that have ended
  std::vector<PlacedServer> servers;
  std::vector<WorkerEntry> workers;
  std::vector<TableSpec> tables;
  std::uint32_t num_unplaced = 0;   ///< that no server has had yet
  std::uint32_t num_not_whole = 0;  ///< with fewer replicas that are there than there should be
  std::vector<PartitionId> not_whole;
  std::uint32_t num_lost = 0;
  std::vector<PartitionVersion> lost;  ///< with the last version that was reported to the coordinator
  std::uint64_t map_changes = 0, takeovers = 0;  ///< partitions that got another primary
  std::uint64_t rejected_messages = 0;
  NamedCounts channels;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.map_version, self.num_partitions, self.num_replicas, self.num_servers,
                    self.num_workers, self.num_tables, self.servers, self.workers, self.tables,
                    self.num_unplaced, self.num_not_whole, self.not_whole, self.num_lost, self.lost,
                    self.map_changes, self.takeovers, self.rejected_messages, self.channels);
  }
};

/// The status by a map; the coordinator adds the counts of events. A partition is whole when as many
/// of its replicas are up as there should be: num_replicas, or one on each server that is up.
ClusterStatus status_of(const ClusterMap& map);

}  // namespace trireme::ps
