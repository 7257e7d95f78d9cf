#include "trireme/base/toml_nesting.h"

#include <algorithm>
#include <cstddef>

namespace trireme {
namespace {

/// The place after the quoted text at `begin`. It is on one line, or on several between triple quotation
/// marks.
std::size_t end_of_quoted(std::string_view toml, std::size_t begin) {
  const char quote = toml[begin];
  const std::string_view three = toml.substr(begin, 3);
  const bool lines = three.size() == 3 && three.find_first_not_of(quote) == std::string_view::npos;
  const std::string_view mark = lines ? three : three.substr(0, 1);
  for (std::size_t at = begin + mark.size(); at < toml.size(); ++at) {
    if (toml[at] == '\\' && quote == '"') {
      ++at;
    } else if (toml.substr(at).starts_with(mark)) {
      at += mark.size();
      while (lines && at < toml.size() && toml[at] == quote) ++at;  // the text may end with such marks
      return at;
    } else if (toml[at] == '\n' && !lines) {
      return at;
    }
  }
  return toml.size();
}

}  // namespace

std::optional<int> line_of_deep_key(std::string_view toml) {
  constexpr std::string_view kBetweenKeys = ",=[]{}\n";
  int line = 1, parts = 1;
  for (std::size_t at = 0; at < toml.size();) {
    const char c = toml[at];
    std::size_t next = at + 1;
    if (c == '"' || c == '\'') next = end_of_quoted(toml, at);
    if (c == '#') next = std::min(toml.find('\n', at), toml.size());
    if (c == '.' && ++parts > kMaxKeyParts) return line;
    if (kBetweenKeys.find(c) != std::string_view::npos) parts = 1;
    line += static_cast<int>(std::ranges::count(toml.substr(at, next - at), '\n'));
    at = next;
  }
  return std::nullopt;
}

}  // namespace trireme
