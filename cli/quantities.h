#pragma once
// Times and sizes of steps in the tables of commands. Pure functions.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "trireme/base/text.h"

namespace trireme::cli {

/// Milliseconds with two digits after the point, without the unit.
inline std::string in_ms(double seconds) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.2f", 1e3 * seconds);
  return digits;
}

/// "75.8 MiB". `bytes` is not negative.
inline std::string in_bytes(std::int64_t bytes) { return human_bytes(static_cast<std::uint64_t>(bytes)); }

/// Error of an estimate relative to the measured value, with its sign: "-5 %".
inline std::string error_in_percent(double estimated, double measured) {
  const auto percent = std::llround(100 * (estimated / measured - 1));
  return text(percent > 0 ? "+" : "", percent, " %");
}

}  // namespace trireme::cli
