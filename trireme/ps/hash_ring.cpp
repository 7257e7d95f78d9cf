#include <algorithm>
#include <cmath>

#include "trireme/ps/internal/hash.h"
#include "trireme/ps/internal/placements.h"

namespace trireme::ps {

Placement place_on_hash_ring(std::span<const Candidate> servers, const PlacementOptions& options,
                             const Placement&) {
  constexpr double kPoints = 1024;  // of a server of weight 1: loads differ by about 3 %
  struct Point {
    std::uint64_t at;
    std::size_t server;
  };
  std::vector<Point> ring;
  for (std::size_t i = 0; i < servers.size(); ++i) {
    const auto count = static_cast<std::uint64_t>(std::max(1.0, std::round(kPoints * servers[i].weight)));
    const std::uint64_t seed = hash_text(servers[i].name);
    for (std::uint64_t point = 0; point < count; ++point) ring.push_back({hash_number(point, seed), i});
  }
  std::sort(ring.begin(), ring.end(), [&](const Point& a, const Point& b) {
    return a.at != b.at ? a.at < b.at : servers[a.server].name < servers[b.server].name;
  });

  Placement result(options.num_partitions);
  for (PartitionId p = 0; p < options.num_partitions; ++p) {
    const std::uint64_t at = hash_number(p);
    const std::size_t first =
        static_cast<std::size_t>(std::lower_bound(ring.begin(), ring.end(), at,
                                                  [](const Point& a, std::uint64_t b) { return a.at < b; }) -
                                 ring.begin());
    std::vector<std::size_t> chosen;
    // One round for servers of other hosts, then one for any other server.
    for (const bool same_host_too : {false, true}) {
      for (std::size_t step = 0; step < ring.size() && chosen.size() < options.num_replicas; ++step) {
        const std::size_t server = ring[(first + step) % ring.size()].server;
        const bool taken = std::any_of(chosen.begin(), chosen.end(), [&](std::size_t other) {
          return other == server || (!same_host_too && servers[other].host == servers[server].host);
        });
        if (!taken) chosen.push_back(server);
      }
    }
    for (const std::size_t server : chosen) result[p].push_back(servers[server].id);
  }
  return result;
}

}  // namespace trireme::ps
