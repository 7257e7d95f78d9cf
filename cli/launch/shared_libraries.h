#pragma once
// Whether a program can be loaded: which of its shared libraries the dynamic loader does not find.

#include <string>
#include <vector>

namespace trireme::cli {

/// Names of the libraries that `program` needs and the loader does not find, in the loader's order. The
/// loader is asked, in a few milliseconds; no code of the program runs.
std::vector<std::string> missing_libraries(const std::string& program);

/// What to do about them, for a program of this project in PREFIX/bin.
std::string advice_for_missing(const std::vector<std::string>& libraries, const std::string& program);

/// Throws InvalidArgument that names the missing libraries, when there are some, and says what to do.
void require_libraries(const std::string& program);

}  // namespace trireme::cli
