#pragma once
// Which build a program is: one line for `--version`, `trireme doctor` and reports of bugs.

#include <string>

namespace trireme::cli {

/// Written by cmake/TriremeBuildFacts.cmake at each build, into one source that changes with the commit.
struct BuildFacts {
  const char* version;   ///< of Trireme, from the file VERSION
  const char* libtorch;  ///< version of the libtorch that the build used
  const char* commit;    ///< 12 hex digits, "+changes" where tracked files differ from it; or "unknown"
};
extern const BuildFacts kBuildFacts;

/// "0.2.0, libtorch 2.15.0, g++ 12.2.0, commit 0123456789ab, no CUDA object". The last part is for this
/// machine: whether the program finds the CUDA object, which it loads if there is a GPU.
std::string version_line();

}  // namespace trireme::cli
