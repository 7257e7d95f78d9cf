#pragma once
// A word as a number, strictly.

#include <charconv>
#include <optional>
#include <string_view>

namespace trireme::plan {

/// The number that the whole word spells; nothing when it spells none, or one out of range.
template <class Number>
std::optional<Number> parse_number(std::string_view word) {
  Number number{};
  const auto result = std::from_chars(word.data(), word.data() + word.size(), number);
  if (result.ec != std::errc() || result.ptr != word.data() + word.size()) return std::nullopt;
  return number;
}

}  // namespace trireme::plan
