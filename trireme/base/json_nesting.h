#pragma once
// The nesting depth of a JSON text, before it is parsed: code that copies or prints it recurses as deep on a
// finite stack. Pure; thread-safe.

#include <string_view>

namespace trireme {

/// Whether arrays and objects are nested more than `levels` deep.
bool nests_deeper(std::string_view json, int levels);

}  // namespace trireme
