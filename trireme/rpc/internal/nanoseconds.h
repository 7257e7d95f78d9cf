#pragma once
// Seconds as the whole nanoseconds that clocks count in.

#include <algorithm>
#include <cstdint>

#include "trireme/base/clock.h"

namespace trireme::rpc {

inline std::int64_t nanoseconds(double seconds) {
  return static_cast<std::int64_t>(std::min(seconds, kLongestTimeout_s) * 1e9);
}

}  // namespace trireme::rpc
