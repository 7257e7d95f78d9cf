#pragma once
// Keys of a TOML text with very many parts (a.b.c....), before anybody parses it: each part is a table in the
// one before, and what walks or frees those goes as deep on a stack that has an end. Brackets within brackets
// the parser limits itself. Pure; thread-safe.

#include <optional>
#include <string_view>

namespace trireme {

inline constexpr int kMaxKeyParts = 64;

/// The first line with a key of more parts.
std::optional<int> line_of_deep_key(std::string_view toml);

}  // namespace trireme
