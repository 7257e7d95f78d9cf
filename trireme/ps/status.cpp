#include "trireme/ps/status.h"

#include <algorithm>
#include <numeric>

namespace trireme::ps {

void Histogram::add(std::uint64_t value) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), value) - kBounds.begin();
  ++buckets[static_cast<std::size_t>(bucket)];
  sum += value;
}

std::uint64_t Histogram::count() const {
  return std::accumulate(buckets.begin(), buckets.end(), std::uint64_t{0});
}

Histogram& Histogram::operator+=(const Histogram& other) {
  for (std::size_t i = 0; i < std::min(buckets.size(), other.buckets.size()); ++i)
    buckets[i] += other.buckets[i];
  sum += other.sum;
  return *this;
}

PartitionCounts& PartitionCounts::operator+=(const PartitionCounts& other) {
  pushes += other.pushes;
  push_bytes += other.push_bytes;
  pulls += other.pulls;
  pull_bytes += other.pull_bytes;
  records += other.records;
  requests_per_record += other.requests_per_record;
  apply_ns += other.apply_ns;
  staleness += other.staleness;
  for (const auto& [why, count] : other.rejected) rejected[why] += count;
  return *this;
}

void RoleStatus::add(Version version, Version lag) { *this += {1, version, lag}; }

RoleStatus& RoleStatus::operator+=(const RoleStatus& other) {
  partitions += other.partitions;
  highest_version = std::max(highest_version, other.highest_version);
  most_lag = std::max(most_lag, other.most_lag);
  return *this;
}

HeldStatus& HeldStatus::operator+=(const HeldStatus& other) {
  primary += other.primary;
  backup += other.backup;
  learner += other.learner;
  feeding += other.feeding;
  for (const auto& [server, lacks] : other.lag) lag[server] = std::max(lag[server], lacks);
  rows += other.rows;
  elements += other.elements;
  bytes += other.bytes;
  parked_pulls += other.parked_pulls;
  queued_items += other.queued_items;
  queued_bytes += other.queued_bytes;
  counts += other.counts;
  return *this;
}

ClusterStatus status_of(const ClusterMap& map) {
  ClusterStatus status;
  status.map_version = map.version;
  status.num_partitions = static_cast<std::uint32_t>(map.partitions.size());
  status.num_replicas = map.num_replicas;
  status.num_workers = static_cast<std::uint32_t>(map.workers.size());
  status.num_tables = static_cast<std::uint32_t>(map.tables.size());

  std::map<ServerId, PlacedServer> placed;
  std::size_t num_up = 0;
  for (const auto& [id, server] : map.servers) {
    if (server.state == ServerEntry::State::kGone) continue;
    placed[id].entry = server;
    num_up += server.state == ServerEntry::State::kUp ? 1 : 0;
  }
  const std::size_t full = std::max<std::size_t>(1, std::min<std::size_t>(map.num_replicas, num_up));
  for (PartitionId id = 0; id < map.partitions.size(); ++id) {
    const PartitionEntry& entry = map.partitions[id];
    if (entry.lost) {
      ++status.num_lost;
      if (status.lost.size() < kMostListed) status.lost.push_back({id, entry.lost_version});
      continue;
    }
    if (entry.chain.empty()) {
      ++status.num_unplaced;
      continue;
    }
    std::size_t num_there = 0;
    for (const ServerId server : entry.chain) {
      const auto found = placed.find(server);
      if (found == placed.end()) continue;
      num_there += found->second.entry.may_hold() ? 1 : 0;
      ++(server == entry.primary() ? found->second.primaries : found->second.backups);
    }
    if (const auto learner = placed.find(entry.learner); learner != placed.end()) ++learner->second.learners;
    if (num_there >= full) continue;
    ++status.num_not_whole;
    if (status.not_whole.size() < kMostListed) status.not_whole.push_back(id);
  }

  status.num_servers = static_cast<std::uint32_t>(placed.size());
  for (const auto& [id, server] : placed) {
    if (status.servers.size() < kMostListed) status.servers.push_back(server);
  }
  for (const auto& [id, worker] : map.workers) {
    if (status.workers.size() < kMostListed) status.workers.push_back(worker);
  }
  for (const auto& [id, table] : map.tables) {
    if (status.tables.size() < kMostListed) status.tables.push_back(table);
  }
  return status;
}

}  // namespace trireme::ps
