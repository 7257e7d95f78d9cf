#pragma once
// Small text tools for messages and reports: joining, units, and the nearest known word to a misspelt one.
// All functions are pure and thread-safe.

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// One part of text(): a value with a stream operator, or std::hex and other manipulators. A reference; one
/// type for all, so that no call of text() instantiates a stream of its own.
class TextPart {
 public:
  TextPart(const char* words);
  TextPart(std::ios_base& (*manipulator)(std::ios_base&));
  template <class Value>
  TextPart(const Value& value)
      : value_(&value), write_([](std::ostream& out, const TextPart& part) {
          out << *static_cast<const Value*>(part.value_);
        }) {}

  void write(std::ostream& out) const { write_(out, *this); }  ///< as the value is streamed

 private:
  union {
    const void* value_;
    std::ios_base& (*manipulator_)(std::ios_base&);
  };
  void (*write_)(std::ostream& out, const TextPart& part);
};

std::string text_of(std::initializer_list<TextPart> parts);  ///< joined

/// Joins anything that can be streamed: text("rank ", 3, " of ", 4).
template <class... Parts>
std::string text(const Parts&... parts) {
  return text_of({TextPart(parts)...});
}

/// "a, b, c" from {"a", "b", "c"}.
std::string join(std::span<const std::string> words, std::string_view separator = ", ");

/// Parts of `line` between `separator`s; always at least one, parts may be empty.
std::vector<std::string> split(std::string_view line, char separator);

/// `line` without white space at both ends.
std::string_view trim(std::string_view line);

/// The known word that needs the fewest edits to become `word`; empty when none is near enough to be meant.
std::string nearest(std::string_view word, std::span<const std::string> known);

/// " (did you mean 'x'?)" when a near known word exists, else " (known: a, b, c)".
std::string suggest(std::string_view word, std::span<const std::string> known);

/// "25.0 MiB", "512 B".
std::string human_bytes(std::uint64_t bytes);

/// "1h 02m", "3m 20s", "4.2 s", "12 ms", "850 us".
std::string human_duration(double seconds);

}  // namespace trireme
