#pragma once
// Times and sizes of steps in the tables of commands. Pure functions.

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

}  // namespace trireme::cli
