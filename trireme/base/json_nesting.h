#pragma once
// How deep a JSON text nests, before anybody parses it: what copies or prints it goes as deep on a stack that
// has an end. Pure; thread-safe.

#include <string_view>

namespace trireme {

/// Whether arrays and objects lie in each other more than `levels` deep.
bool nests_deeper(std::string_view json, int levels);

}  // namespace trireme
