#pragma once
// Finds programs: by name, as a shell does, and next to the running program.

#include <string>

namespace trireme::cli {

/// The path of what `name` would run: itself when it holds a '/', else the first executable of that name in
/// PATH. Throws InvalidArgument that says where it looked and what is wrong with what it found.
std::string find_program(const std::string& name);

/// The file of the running program. Throws InvalidArgument when it is there no longer.
std::string own_path();

/// A program of this project: in the folder of the running one, or in ../libexec/trireme from there. Throws
/// InvalidArgument that names both places.
std::string find_own_program(const std::string& name);

}  // namespace trireme::cli
