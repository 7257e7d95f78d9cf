#pragma once
// Values of a TOML document as text again. toml++ 3.3 writes lists too, but estimates their length in a way
// that is undefined for numbers below 1, and 0.1 as 0.10000000000000001.

#include <string>

#include "trireme/base/toml.h"

namespace trireme {

/// In one line, as TOML; numbers as short as they read back: `[1.0, 0.1]`, `{ "a" = "b" }`.
std::string toml_text(const toml::node& node);
/// A text, in quotes.
std::string toml_text(const std::string& words);

}  // namespace trireme
