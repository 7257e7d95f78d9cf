#pragma once
// Barriers of workers. Each worker numbers its barriers: 1, 2, 3, ... A barrier opens when all workers of the
// map have reached or passed it. The requested number of workers must also have reached it or left. The
// coordinator keeps nothing of it on disk: every heartbeat repeats it. A value.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "trireme/ps/cluster_map.h"
#include "trireme/ps/messages.h"

namespace trireme::ps {

class Barriers {
 public:
  void on_heartbeat(WorkerId worker, const Heartbeat& heartbeat) {
    Place& place = places_[worker];
    place.entered = std::max(heartbeat.barrier_entered, heartbeat.barrier_passed);
    place.passed = heartbeat.barrier_passed;
    most_workers_ = std::max(most_workers_, heartbeat.barrier_workers);
  }
  void arrive(WorkerId worker) {
    places_.erase(worker);
    departed_.erase(worker);
  }
  void depart(WorkerId worker) {
    places_.erase(worker);
    departed_.insert(worker);
  }
  /// The last one that is open.
  std::uint64_t open(const ClusterMap& map) const {
    std::uint64_t all = UINT64_MAX, passed = 0;
    for (const auto& [worker, entry] : map.workers) {
      const auto found = places_.find(worker);
      all = std::min(all, found == places_.end() ? 0 : found->second.entered);
    }
    for (const auto& [worker, place] : places_) passed = std::max(passed, place.passed);
    const bool enough = map.workers.size() + departed_.size() >= most_workers_;
    return std::max(passed, enough && !map.workers.empty() ? all : 0);
  }

 private:
  struct Place {
    std::uint64_t entered = 0, passed = 0;
  };
  std::map<WorkerId, Place> places_;
  std::set<WorkerId> departed_;
  std::uint32_t most_workers_ = 0;
};

}  // namespace trireme::ps
