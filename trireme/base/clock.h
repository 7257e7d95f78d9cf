#pragma once
// Time: one monotonic clock, and deadlines. A wait for another rank, a disk or a process has a Deadline. A
// thread of Trireme that waits for work has none: its owner ends it.

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace trireme {

using Clock = std::chrono::steady_clock;
/// A duration of std::chrono in seconds, for conversions to and from double.
using Seconds = std::chrono::duration<double>;

/// Seconds on the monotonic clock; only differences mean something. On Linux all processes of a host share
/// it.
inline double now_s() { return Seconds(Clock::now().time_since_epoch()).count(); }

/// The same in nanoseconds.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// The longest timeout, about thirty years: every longer one, infinity too, means this.
inline constexpr double kLongestTimeout_s = 1e9;

/// A timeout for interfaces that take whole milliseconds, some of them as an int: at least one, at most 24
/// days.
inline std::chrono::milliseconds whole_milliseconds(double timeout_s) {
  constexpr double kMost = 2147483647;
  const double exact = timeout_s * 1000;
  return std::chrono::milliseconds(static_cast<std::int64_t>(exact < kMost ? std::max(exact, 1.0) : kMost));
}

/// A point in time by which a wait has to be over. A value; thread-safe.
class Deadline {
 public:
  /// `timeout_s` seconds from now; now for negative ones.
  static Deadline after_s(double timeout_s) {
    const double seconds = timeout_s < kLongestTimeout_s ? std::max(timeout_s, 0.0) : kLongestTimeout_s;
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds)));
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
