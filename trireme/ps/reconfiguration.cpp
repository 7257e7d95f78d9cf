#include "trireme/ps/internal/reconfiguration.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace trireme::ps {
namespace {

bool contains(const std::vector<ServerId>& servers, ServerId id) {
  return std::find(servers.begin(), servers.end(), id) != servers.end();
}

bool has_ended(const ClusterMap& map, ServerId id) {
  const ServerEntry* server = map.server(id);
  return server == nullptr || server->state == ServerEntry::State::kGone;
}

bool is_there(const ClusterMap& map, ServerId id) {
  const ServerEntry* server = map.server(id);
  return server != nullptr && server->may_hold();
}

void drop_dead(PartitionEntry& entry, const ClusterMap& map, const PartitionEvents& events) {
  if (entry.chain.empty()) return;
  std::erase_if(entry.chain, [&](ServerId id) { return has_ended(map, id); });
  if (entry.chain.empty()) {
    entry.lost = true;
    entry.learner = kNoServer;
    return;
  }
  // A silent server may have the only copy, so the last replica is not dropped.
  std::vector<ServerId> there;
  for (const ServerId id : entry.chain) {
    if (is_there(map, id)) there.push_back(id);
  }
  if (!there.empty()) entry.chain = there;
  if (events.suspected && *events.suspected != entry.primary()) std::erase(entry.chain, *events.suspected);
  if (events.suspected && *events.suspected == entry.learner) entry.learner = kNoServer;
  if (entry.learner != kNoServer && (!is_there(map, entry.learner) || there.empty()))
    entry.learner = kNoServer;
}

bool all_in(const std::vector<ServerId>& wanted, const std::vector<ServerId>& chain) {
  return std::all_of(wanted.begin(), wanted.end(), [&](ServerId id) { return contains(chain, id); });
}

/// Whether the chain becomes `wanted` by removing servers: the remaining ones keep their order.
bool keeps_order(const std::vector<ServerId>& wanted, const std::vector<ServerId>& chain) {
  auto next = wanted.begin();
  for (const ServerId id : chain) {
    if (next != wanted.end() && *next == id) ++next;
  }
  return next == wanted.end();
}

}  // namespace

PartitionEntry reconfigured(const PartitionEntry& now, const std::vector<ServerId>& wanted,
                            const ClusterMap& map, const PartitionEvents& events, Epoch epoch) {
  PartitionEntry next = now;
  drop_dead(next, map, events);
  if (next.lost && events.begins_anew && !wanted.empty())
    next = {.chain = wanted, .lost_version = next.lost_version, .begun = epoch};
  if (next.lost) {
    if (!(next == now)) next.epoch = epoch;
    return next;
  }
  if (next.chain.empty()) next.chain = wanted;  // never used before
  if (next.learner != kNoServer && !contains(wanted, next.learner)) next.learner = kNoServer;
  if (events.caught_up && next.learner == *events.caught_up && next.learner == now.learner) {
    next.chain.push_back(next.learner);
    next.learner = kNoServer;
  }
  const bool is_alive = !next.chain.empty() && is_there(map, next.primary());
  if (next.chain != now.chain) next.draining = false;
  if (is_alive && next.learner == kNoServer) {
    if (!all_in(wanted, next.chain)) {
      next.draining = false;
      next.learner =
          *std::find_if(wanted.begin(), wanted.end(), [&](ServerId id) { return !contains(next.chain, id); });
      next.learner_since = epoch;
    } else if (!wanted.empty() && next.chain != wanted) {
      if (keeps_order(wanted, next.chain) || (next.draining && events.drained)) {
        next.chain = wanted;
        next.draining = false;
      } else {
        next.draining = true;
      }
    } else {
      next.draining = false;
    }
  }
  if (!(next == now)) next.epoch = epoch;
  return next;
}

bool release_leaving(ClusterMap& map) {
  constexpr std::size_t kMostGone = 64;  // kept, so that a late message of theirs is recognized
  std::set<ServerId> used;
  for (const PartitionEntry& entry : map.partitions) {
    used.insert(entry.chain.begin(), entry.chain.end());
    used.insert(entry.learner);
  }
  std::size_t num_gone = 0;
  bool releases = false;
  for (auto& [id, server] : map.servers) {
    if (server.state == ServerEntry::State::kLeaving && !used.contains(id)) {
      server.state = ServerEntry::State::kGone;
      releases = true;
    }
    num_gone += server.state == ServerEntry::State::kGone ? 1 : 0;
  }
  for (auto server = map.servers.begin(); server != map.servers.end() && num_gone > kMostGone;) {
    const bool forget = server->second.state == ServerEntry::State::kGone && !used.contains(server->first);
    num_gone -= forget ? 1 : 0;
    server = forget ? map.servers.erase(server) : std::next(server);
  }
  return releases;
}

Placement what_partitions_have(const ClusterMap& map) {
  Placement result;
  for (const PartitionEntry& entry : map.partitions) {
    result.push_back(entry.chain);
    if (entry.learner != kNoServer) result.back().push_back(entry.learner);
  }
  return result;
}

}  // namespace trireme::ps
