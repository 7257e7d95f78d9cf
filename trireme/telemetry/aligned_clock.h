#pragma once
// A common time for several hosts. The offset of this rank's monotonic clock from rank 0's is measured at the
// begin and at the end of a span of time. In between it is a straight line, because crystals of two hosts
// drift apart by up to some milliseconds per minute. A value; thread-safe.

#include <algorithm>
#include <cstdint>

namespace trireme::telemetry {

struct ClockSample {
  std::int64_t at_ns = 0;      ///< own clock
  std::int64_t offset_ns = 0;  ///< added to the own clock it gives rank 0's
  std::int64_t error_ns = 0;   ///< bound of the offset's error
};

class AlignedClock {
 public:
  explicit AlignedClock(const ClockSample& sample) : AlignedClock(sample, sample) {}
  AlignedClock(const ClockSample& first, const ClockSample& last) : first_(first), last_(last) {}

  /// Rank 0's time when this rank's clock showed `own_ns`; before the first and after the last sample the
  /// line continues level.
  std::int64_t of_rank_0(std::int64_t own_ns) const {
    if (own_ns >= last_.at_ns) return own_ns + last_.offset_ns;
    if (own_ns <= first_.at_ns) return own_ns + first_.offset_ns;
    const double share =
        static_cast<double>(own_ns - first_.at_ns) / static_cast<double>(last_.at_ns - first_.at_ns);
    const double drift = share * static_cast<double>(last_.offset_ns - first_.offset_ns);
    return own_ns + first_.offset_ns + static_cast<std::int64_t>(drift);
  }

  const ClockSample& last() const { return last_; }
  /// Bound of the error of every time between the two samples.
  std::int64_t error_ns() const { return std::max(first_.error_ns, last_.error_ns); }

 private:
  ClockSample first_, last_;
};

}  // namespace trireme::telemetry
