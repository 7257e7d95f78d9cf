#include "tests/support/paths.h"

#include <cstdlib>

namespace trireme::test {
namespace {

/// A part of the bundle that the variable names, or else the path in this build.
std::string place(const char* part, const char* built) {
  const char* bundle = std::getenv("TRIREME_TEST_BUNDLE");
  return bundle == nullptr ? built : std::string(bundle) + part;
}

}  // namespace

std::string bin(const std::string& name) { return place("/bin/", TRIREME_BIN_DIR "/") + name; }
std::string checkout(const std::string& path) { return place("/checkout/", TRIREME_SOURCE_DIR "/") + path; }
std::string build_folder() { return TRIREME_BINARY_DIR; }

}  // namespace trireme::test
