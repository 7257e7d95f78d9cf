#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "trireme/ps/internal/hash.h"
#include "trireme/ps/internal/placements.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

/// Hash of a server and a partition, uniform in (0, 1).
double rendezvous_hash(std::uint64_t server, PartitionId partition) {
  const std::uint64_t hash = hash_number(partition, server);
  return (static_cast<double>(hash >> 11) + 0.5) * 0x1p-53;
}

/// Places replicas of one rank after the other, so that primaries are spread as evenly as backups. Servers
/// are indices here, in the order of their names.
class Placing {
 public:
  Placing(std::span<const Candidate> servers, const PlacementOptions& options, const Placement& before)
      : options_(options), servers_(servers.begin(), servers.end()) {
    std::sort(servers_.begin(), servers_.end(),
              [](const Candidate& a, const Candidate& b) { return a.name < b.name; });
    std::unordered_map<ServerId, std::size_t> numbers;
    for (std::size_t i = 0; i < servers_.size(); ++i) numbers[servers_[i].id] = i;
    scores_.resize(servers_.size());
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      const std::uint64_t seed = hash_text(servers_[i].name);
      for (PartitionId p = 0; p < options_.num_partitions; ++p)
        scores_[i].push_back(-servers_[i].weight / std::log(rendezvous_hash(seed, p)));
    }
    before_.resize(options_.num_partitions);
    for (std::size_t p = 0; p < std::min(before.size(), before_.size()); ++p) {
      for (const ServerId id : before[p])
        before_[p].push_back(numbers.contains(id) ? numbers.at(id) : kNobody);
    }
    chains_.resize(options_.num_partitions);
    bound_loads();
  }

  Placement place() {
    const std::size_t num_replicas = std::min<std::size_t>(options_.num_replicas, servers_.size());
    for (std::size_t rank = 0; rank < num_replicas; ++rank) {
      loads_.assign(servers_.size(), 0);
      for (auto& chain : chains_) chain.push_back(kNobody);
      keep_what_is_there(rank);
      for (PartitionId p = 0; p < options_.num_partitions; ++p) {
        if (chains_[p].back() == kNobody) give(p, best_for(p));
      }
      for (std::size_t i = 0; i < servers_.size(); ++i) draw_to(i);
      for (std::size_t i = 0; i < servers_.size(); ++i) shed_from(i);
    }
    Placement result(options_.num_partitions);
    for (PartitionId p = 0; p < options_.num_partitions; ++p) {
      for (const std::size_t i : chains_[p]) result[p].push_back(servers_[i].id);
    }
    return result;
  }

 private:
  /// Load limits of each server per replica rank: maximum, fill level and minimum.
  void bound_loads() {
    double total = 0;
    for (const Candidate& server : servers_) total += server.weight;
    for (const Candidate& server : servers_) {
      const double share = options_.num_partitions * server.weight / total;
      most_.push_back(static_cast<std::uint32_t>(std::ceil(share * (1 + options_.epsilon))));
      enough_.push_back(static_cast<std::uint32_t>(std::lround(share * (1 - options_.epsilon))));
      little_.push_back(share * (1 - 2 * options_.epsilon));
    }
  }

  bool is_free(PartitionId p, std::size_t i) const {
    return std::find(chains_[p].begin(), chains_[p].end(), i) == chains_[p].end();
  }
  bool shares_host(PartitionId p, std::size_t i) const {
    return std::any_of(chains_[p].begin(), chains_[p].end(), [&](std::size_t other) {
      return other != kNobody && other != i && servers_[other].host == servers_[i].host;
    });
  }
  bool had(PartitionId p, std::size_t i) const {
    return std::find(before_[p].begin(), before_[p].end(), i) != before_[p].end();
  }
  void give(PartitionId p, std::size_t i) {
    std::size_t& place = chains_[p].back();
    if (place != kNobody) --loads_[place];
    place = i;
    ++loads_[i];
  }

  /// The server with the highest hash among those that satisfy `fits`, or none.
  template <class Fits>
  std::size_t favourite(PartitionId p, const Fits& fits) const {
    std::size_t best = kNobody;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if ((best == kNobody || scores_[i][p] > scores_[best][p]) && is_free(p, i) && fits(i)) best = i;
    }
    return best;
  }
  /// Another server for a replica, on another host than the other replicas of its partition.
  std::size_t elsewhere(PartitionId p) const {
    const std::size_t empty =
        favourite(p, [&](std::size_t i) { return loads_[i] < enough_[i] && !shares_host(p, i); });
    if (empty != kNobody) return empty;
    return favourite(p, [&](std::size_t i) { return loads_[i] < most_[i] && !shares_host(p, i); });
  }
  /// Prefers a server that holds the partition already. Different hosts have priority over load limits: a
  /// copy on the same host does not survive the loss of the host.
  std::size_t best_for(PartitionId p) const {
    std::size_t best =
        favourite(p, [&](std::size_t i) { return had(p, i) && loads_[i] < most_[i] && !shares_host(p, i); });
    if (best == kNobody) best = elsewhere(p);
    if (best == kNobody) best = favourite(p, [&](std::size_t i) { return !shares_host(p, i); });
    if (best == kNobody) best = favourite(p, [&](std::size_t i) { return loads_[i] < most_[i]; });
    return best == kNobody ? favourite(p, [](std::size_t) { return true; }) : best;
  }

  void keep_what_is_there(std::size_t rank) {
    for (PartitionId p = 0; p < options_.num_partitions; ++p) {
      const std::size_t there = rank < before_[p].size() ? before_[p][rank] : kNobody;
      if (there == kNobody || !is_free(p, there)) continue;
      const auto is_apart = [&](std::size_t i) { return !shares_host(p, i); };
      if (is_apart(there) || favourite(p, is_apart) == kNobody) give(p, there);
    }
  }

  std::vector<PartitionId> sorted_by_liking(std::size_t i) const {
    std::vector<PartitionId> partitions(options_.num_partitions);
    for (PartitionId p = 0; p < options_.num_partitions; ++p) partitions[p] = p;
    std::stable_sort(partitions.begin(), partitions.end(),
                     [&](PartitionId a, PartitionId b) { return scores_[i][a] > scores_[i][b]; });
    return partitions;
  }

  /// Fills a server below its minimum: takes the partitions with the highest hash for it, from servers above
  /// their fill level.
  void draw_to(std::size_t i) {
    if (loads_[i] >= little_[i]) return;
    for (const PartitionId p : sorted_by_liking(i)) {
      if (loads_[i] >= enough_[i]) return;
      const std::size_t there = chains_[p].back();
      if (loads_[there] <= enough_[there] || !is_free(p, i)) continue;
      chains_[p].back() = kNobody;  // the host of the replica to be moved does not count
      const bool is_apart = !shares_host(p, i);
      chains_[p].back() = there;
      if (is_apart) give(p, i);
    }
  }

  /// Relieves a server above its maximum: moves the partitions with the lowest hash for it to servers with
  /// room.
  void shed_from(std::size_t i) {
    if (loads_[i] <= most_[i]) return;
    const std::vector<PartitionId> partitions = sorted_by_liking(i);
    for (auto p = partitions.rbegin(); p != partitions.rend() && loads_[i] > most_[i]; ++p) {
      std::size_t& place = chains_[*p].back();
      if (place != i) continue;
      place = kNobody;
      const std::size_t other = elsewhere(*p);
      place = i;
      if (other != kNobody && other != i) give(*p, other);
    }
  }

  const PlacementOptions options_;
  std::vector<Candidate> servers_;
  std::vector<std::vector<double>> scores_;  ///< by server and partition
  std::vector<std::vector<std::size_t>> before_, chains_;
  std::vector<std::uint32_t> most_, enough_, loads_;
  std::vector<double> little_;
};

}  // namespace

Placement place_by_bounded_rendezvous(std::span<const Candidate> servers, const PlacementOptions& options,
                                      const Placement& before) {
  if (servers.empty()) return Placement(options.num_partitions);
  return Placing(servers, options, before).place();
}

}  // namespace trireme::ps
