#pragma once
// Keys of a TOML text with very many parts (a.b.c....), before it is parsed. Each part is a table in the one
// before, and code that visits or frees those recurses as deep on a finite stack. The parser itself limits
// nested brackets. Pure; thread-safe.

#include <optional>
#include <string_view>

namespace trireme {

inline constexpr int kMaxKeyParts = 64;

/// The first line with a key of more parts.
std::optional<int> line_of_deep_key(std::string_view toml);

}  // namespace trireme
