#pragma once
// Whole numbers in JSON that came from outside. nlohmann's get<>() makes one of every number, and of one that
// does not fit another one; here it is rejected. For any of nlohmann's types of JSON, of which this module
// includes none. Stateless; thread-safe.

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

/// Throws DataError: no number, not whole, or out of the range of `Whole`.
template <class Whole, class Json>
Whole whole_in(const Json& json) {
  if (json.is_number_unsigned()) {
    const auto number = json.template get<std::uint64_t>();
    if (std::in_range<Whole>(number)) return static_cast<Whole>(number);
  } else if (json.is_number_integer()) {
    const auto number = json.template get<std::int64_t>();
    if (std::in_range<Whole>(number)) return static_cast<Whole>(number);
  }
  const std::string found = json.is_primitive() ? json.dump().substr(0, 80) : json.type_name();
  throw DataError(text("expected a whole number from ", +std::numeric_limits<Whole>::min(), " to ",
                       +std::numeric_limits<Whole>::max(), ", found ", found));
}

/// The same of a list of them.
template <class Whole, class Json>
std::vector<Whole> wholes_in(const Json& json) {
  if (!json.is_array()) throw DataError(text("expected a list of whole numbers, found ", json.type_name()));
  std::vector<Whole> numbers;
  for (const Json& each : json) numbers.push_back(whole_in<Whole>(each));
  return numbers;
}

}  // namespace trireme
