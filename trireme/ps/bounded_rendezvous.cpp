#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/ps/internal/hash.h"
#include "trireme/ps/internal/placements.h"

namespace trireme::ps {
namespace {

/// Uniform in (0, 1), of a server and a partition.
double rendezvous_hash(std::uint64_t server, PartitionId partition) {
  const std::uint64_t hash = hash_number(partition, server);
  return (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
}

/// Servers in the order in which the partition likes them.
std::vector<std::size_t> preference(PartitionId partition, const std::vector<std::uint64_t>& seeds,
                                    std::span<const Candidate> servers) {
  std::vector<double> scores(servers.size());
  for (std::size_t i = 0; i < servers.size(); ++i)
    scores[i] = -servers[i].weight / std::log(rendezvous_hash(seeds[i], partition));
  std::vector<std::size_t> order(servers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : servers[a].name < servers[b].name;
  });
  return order;
}

/// What one server may have of `count` roles.
std::vector<std::uint32_t> capacities(std::span<const Candidate> servers, double count, double epsilon) {
  double total = 0;
  for (const Candidate& server : servers) total += server.weight;
  std::vector<std::uint32_t> result;
  for (const Candidate& server : servers)
    result.push_back(static_cast<std::uint32_t>(std::ceil(count * server.weight / total * (1 + epsilon))));
  return result;
}

}  // namespace

Placement place_by_bounded_rendezvous(std::span<const Candidate> servers, const PlacementOptions& options) {
  Placement result(options.num_partitions);
  if (servers.empty()) return result;
  std::vector<std::uint64_t> seeds;
  for (const Candidate& server : servers) seeds.push_back(hash_text(server.name));
  std::vector<std::vector<std::size_t>> orders;
  for (PartitionId p = 0; p < options.num_partitions; ++p) orders.push_back(preference(p, seeds, servers));

  const std::size_t num_replicas = std::min<std::size_t>(options.num_replicas, servers.size());
  for (std::size_t rank = 0; rank < num_replicas; ++rank) {
    // Each rank has bounds of its own, so that primaries are spread as evenly as replicas.
    std::vector<std::uint32_t> room = capacities(servers, options.num_partitions, options.epsilon);
    for (PartitionId p = 0; p < options.num_partitions; ++p) {
      const auto is_free = [&](std::size_t i) {
        return std::find(result[p].begin(), result[p].end(), servers[i].id) == result[p].end();
      };
      const auto shares_host = [&](std::size_t i) {
        return std::any_of(servers.begin(), servers.end(), [&](const Candidate& other) {
          return other.host == servers[i].host &&
                 std::find(result[p].begin(), result[p].end(), other.id) != result[p].end();
        });
      };
      // Distinct hosts before bounds: a copy on the same host is no copy.
      const auto best = [&](auto&& fits) { return std::find_if(orders[p].begin(), orders[p].end(), fits); };
      auto chosen = best([&](std::size_t i) { return room[i] > 0 && is_free(i) && !shares_host(i); });
      if (chosen == orders[p].end())
        chosen = best([&](std::size_t i) { return is_free(i) && !shares_host(i); });
      if (chosen == orders[p].end()) chosen = best([&](std::size_t i) { return room[i] > 0 && is_free(i); });
      if (chosen == orders[p].end()) chosen = best(is_free);
      if (room[*chosen] > 0) --room[*chosen];
      result[p].push_back(servers[*chosen].id);
    }
  }
  return result;
}

}  // namespace trireme::ps
