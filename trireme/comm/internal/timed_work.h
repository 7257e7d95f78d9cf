#pragma once
// For works that record when their operation ended: a wait returns later. Thread-safe.

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace trireme::comm {

class TimedWork {
 public:
  virtual ~TimedWork() = default;
  /// On the monotonic clock; 0 as long as it runs.
  virtual double ended_s() const = 0;
};

/// When the operation ended; `otherwise` when the backend does not record it.
inline double ended_s_of(const c10d::Work& work, double otherwise) {
  const auto* timed = dynamic_cast<const TimedWork*>(&work);
  const double ended_s = timed == nullptr ? 0 : timed->ended_s();
  return ended_s > 0 ? ended_s : otherwise;
}

}  // namespace trireme::comm
