#pragma once
// Text that comes from a file, a message or another user, before it is printed: on one line, of bounded
// length, and without bytes that a terminal acts on. Pure; thread-safe.

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace trireme {

/// Characters of foreign text that a message quotes at most.
inline constexpr std::size_t kMaxQuoted = 80;
/// For tables and reports, which print whole names.
inline constexpr std::size_t kWhole = std::numeric_limits<std::size_t>::max();

/// `foreign` with escapes as in C: `
/// `, `\t`, `\r`, `\\`, and `\x1b` for control characters and for bytes that are not UTF-8. Line separators,
/// invisible characters and those that change the direction of text become escapes such as `\u202e`. Of more
/// than `most` characters the first `most` remain, and "... (N bytes)" follows. Linear in `most`.
std::string printable(std::string_view foreign, std::size_t most = kMaxQuoted);

/// A message of several lines, safe for a terminal: as printable(), but line ends, tabs and backslashes stay,
/// and so does everything up to `most` bytes.
std::string printable_message(std::string_view message, std::size_t most = 16384);

}  // namespace trireme
