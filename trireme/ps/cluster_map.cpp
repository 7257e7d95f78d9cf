#include "trireme/ps/cluster_map.h"

#include "trireme/ps/placement.h"

namespace trireme::ps {

bool ClusterMap::apply(const MapChange& change) {
  if (change.from != version && change.from != 0) return false;
  if (change.to <= version) return false;
  if (change.from == 0) *this = ClusterMap{};
  partitions.resize(change.num_partitions);
  for (const auto& [id, entry] : change.partitions) {
    if (id < partitions.size()) partitions[id] = entry;
  }
  version = change.to;
  num_replicas = change.num_replicas;
  next_server = change.next_server;
  servers.clear();
  for (const ServerEntry& server : change.servers) servers[server.id] = server;
  workers.clear();
  for (const WorkerEntry& worker : change.workers) workers[worker.life.worker] = worker;
  for (const TableSpec& spec : change.tables) tables[spec.id] = spec;
  return true;
}

MapChange ClusterMap::whole() const {
  MapChange change = {.from = 0,
                      .to = version,
                      .num_partitions = static_cast<std::uint32_t>(partitions.size()),
                      .num_replicas = num_replicas,
                      .next_server = next_server,
                      .servers = {},
                      .workers = {},
                      .tables = {},
                      .partitions = {}};
  for (const auto& [id, server] : servers) change.servers.push_back(server);
  for (const auto& [id, worker] : workers) change.workers.push_back(worker);
  for (const auto& [id, spec] : tables) change.tables.push_back(spec);
  for (PartitionId id = 0; id < partitions.size(); ++id) change.partitions[id] = partitions[id];
  return change;
}

bool ClusterMap::lives(const WorkerLife& life) const {
  const auto found = workers.find(life.worker);
  return found != workers.end() && found->second.life == life;
}

const TableSpec* ClusterMap::table(const std::string& name) const {
  for (const auto& [id, spec] : tables) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

const ServerEntry* ClusterMap::server(ServerId id) const {
  const auto found = servers.find(id);
  return found == servers.end() ? nullptr : &found->second;
}

PartitionId ClusterMap::partition_of(TableId table, std::uint64_t key) const {
  return ps::partition_of(table, key, static_cast<std::uint32_t>(partitions.size()));
}

}  // namespace trireme::ps
