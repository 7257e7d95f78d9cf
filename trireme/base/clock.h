#pragma once
// Time: one monotonic clock, and deadlines. Nothing in the project waits without a Deadline.

#include <chrono>
#include <cstdint>

namespace trireme {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Seconds on the monotonic clock; only differences mean something. On Linux all processes of a host share
/// it.
inline double now_s() { return Seconds(Clock::now().time_since_epoch()).count(); }

/// The same in nanoseconds.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// A point in time by which a wait has to be over. A value; thread-safe.
class Deadline {
 public:
  /// `timeout_s` seconds from now.
  static Deadline after_s(double timeout_s) {
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(timeout_s)));
  }
  bool expired() const { return Clock::now() >= at_; }
  /// Seconds left, never negative.
  double remaining_s() const {
    const double left = Seconds(at_ - Clock::now()).count();
    return left > 0 ? left : 0;
  }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace trireme
