#pragma once
// Division and rounding of counts upwards. Values; constexpr. `by` and `step` are greater than 0.

#include <cstdint>

namespace trireme {

/// The smallest count of groups of `by` that holds `value` elements.
constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

/// The smallest multiple of `step` that is not below `value`.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
  return divide_up(value, step) * step;
}

}  // namespace trireme
