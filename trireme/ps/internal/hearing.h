#pragma once
// When each member was heard last, by a node that may itself have been held up: time in which it read
// nothing makes nobody late. A value; one thread.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "trireme/ps/ids.h"

namespace trireme::ps {

class Hearing {
 public:
  void begin(std::int64_t now_ns) { listened_ns_ = now_ns; }
  void hear(Incarnation incarnation, std::int64_t at_ns) { heard_ns_[incarnation] = at_ns; }
  bool is_silent(Incarnation incarnation, std::int64_t now_ns, std::int64_t for_ns) {
    return now_ns > heard_ns_[incarnation] + for_ns;
  }

  /// At each tick; what went by since the last one beyond `most_ns` was the node's own absence.
  void excuse(std::int64_t now_ns, std::int64_t most_ns) {
    const std::int64_t absent = now_ns - std::exchange(listened_ns_, now_ns) - most_ns;
    if (absent <= 0) return;
    for (auto& [incarnation, heard] : heard_ns_) heard = std::max(heard, std::min(heard + absent, now_ns));
  }
  void keep_only(const std::set<Incarnation>& known) {
    std::erase_if(heard_ns_, [&](const auto& heard) { return !known.contains(heard.first); });
  }

 private:
  std::map<Incarnation, std::int64_t> heard_ns_;
  std::int64_t listened_ns_ = 0;  ///< the last tick
};

}  // namespace trireme::ps
