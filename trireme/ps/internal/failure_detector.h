#pragma once
// The last heartbeat of each member, at a node that may itself have been delayed: time in which it read
// nothing counts against no member. A value; one thread.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "trireme/ps/ids.h"

namespace trireme::ps {

class FailureDetector {
 public:
  void begin(std::int64_t now_ns) { listened_ns_ = now_ns; }
  void on_heartbeat(Incarnation incarnation, std::int64_t at_ns) { heartbeat_ns_[incarnation] = at_ns; }
  bool is_silent(Incarnation incarnation, std::int64_t now_ns, std::int64_t for_ns) {
    return now_ns > heartbeat_ns_[incarnation] + for_ns;
  }

  /// At each tick; time since the last one beyond `most_ns` is the node's own absence.
  void discount_absence(std::int64_t now_ns, std::int64_t most_ns) {
    const std::int64_t absent = now_ns - std::exchange(listened_ns_, now_ns) - most_ns;
    if (absent <= 0) return;
    for (auto& [incarnation, last] : heartbeat_ns_) last = std::max(last, std::min(last + absent, now_ns));
  }
  void keep_only(const std::set<Incarnation>& known) {
    std::erase_if(heartbeat_ns_, [&](const auto& last) { return !known.contains(last.first); });
  }

 private:
  std::map<Incarnation, std::int64_t> heartbeat_ns_;
  std::int64_t listened_ns_ = 0;  ///< the last tick
};

}  // namespace trireme::ps
