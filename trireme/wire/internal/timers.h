#pragma once
// Deadlines of timers. Not thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "trireme/wire/node.h"

namespace trireme::wire {

class Timers {
 public:
  TimerId start(std::int64_t at_ns) {
    const TimerId id = ++last_;
    by_id_.emplace(id, by_time_.emplace(at_ns, id));
    return id;
  }
  void stop(TimerId id) {
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return;
    by_time_.erase(found->second);
    by_id_.erase(found);
  }
  std::optional<std::int64_t> next_ns() const {
    return by_time_.empty() ? std::nullopt : std::optional(by_time_.begin()->first);
  }
  /// The first that is over, which is then gone.
  std::optional<TimerId> take(std::int64_t now_ns) {
    if (by_time_.empty() || by_time_.begin()->first > now_ns) return std::nullopt;
    const TimerId id = by_time_.begin()->second;
    stop(id);
    return id;
  }
  void clear() {
    by_time_.clear();
    by_id_.clear();
  }

 private:
  using ByTime = std::multimap<std::int64_t, TimerId>;
  ByTime by_time_;
  std::unordered_map<TimerId, ByTime::iterator> by_id_;
  TimerId last_ = 0;
};

}  // namespace trireme::wire
