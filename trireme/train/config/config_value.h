#pragma once
// The values that a configuration key allows, as types and bounds. Values; thread-safe.

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace trireme::train {

using ConfigValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                                 std::vector<double>, std::vector<std::string>>;

/// The type that holds a field of options while it is parsed.
template <class Field>
using HeldAs = std::conditional_t<
    std::is_same_v<Field, bool>, bool,
    std::conditional_t<std::is_integral_v<Field>, std::int64_t,
                       std::conditional_t<std::is_floating_point_v<Field>, double, Field>>>;

/// The kind of file that a path names. Both forms are printable: a name in a message is exact.
enum class PathForm {
  kAny,           ///< no path, or any that the user of the configuration can write to
  kOneComponent,  ///< a name in a folder
  kBelow,         ///< a relative path that stays below a folder; empty: none
};

/// Bounds of a number, or the names that a text may be; of a list: of each of its elements.
struct Allowed {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();   ///< exclusive
  double above = -std::numeric_limits<double>::infinity();  ///< exclusive
  std::function<std::vector<std::string>()> names = nullptr;
  PathForm path = PathForm::kAny;

  /// "at least 1", "0 to 1", "above 0"; the names; empty when everything is allowed.
  std::string describe() const;
};

/// The changes of a key that a resumed run allows.
enum class OnResume {
  kMayChange,
  kMayChangeByName,  ///< where the configuration names the key; a default that is another than it was does
                     ///< not
  kStays,            ///< it would continue with other numbers, or none at all
  kUpdatesStay,  ///< as long as stages update when they did: at the end of a step, or while micro-batches are
                 ///< under way. Stale gradients are another algorithm: losses, and learning rates that work,
                 ///< are others
};

}  // namespace trireme::train
