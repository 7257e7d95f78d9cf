#include "tests/support/paths.h"

namespace trireme::test {

std::string bin(const std::string& name) { return TRIREME_BIN_DIR "/" + name; }
std::string checkout(const std::string& path) { return TRIREME_SOURCE_DIR "/" + path; }
std::string build_folder() { return TRIREME_BINARY_DIR; }

}  // namespace trireme::test
