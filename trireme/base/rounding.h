#pragma once
// Division and rounding of counts upwards. Values; constexpr. `value` is not negative, `by` and `step` are
// greater than 0.

#include <concepts>
#include <type_traits>

namespace trireme {

/// The smallest count of groups of `by` that holds `value` elements.
template <std::integral Count>
constexpr Count divide_up(Count value, std::type_identity_t<Count> by) {
  return (value + by - 1) / by;
}

/// The smallest multiple of `step` that is not below `value`.
template <std::integral Count>
constexpr Count round_up(Count value, std::type_identity_t<Count> step) {
  return divide_up(value, step) * step;
}

}  // namespace trireme
