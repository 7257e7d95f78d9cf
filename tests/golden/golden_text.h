#pragma once
// The expected output of the programs, word for word, in the files cli_NAME.txt.

#include <string>

#include "tests/support/paths.h"
#include "trireme/base/files.h"

namespace trireme::test {

inline std::string golden(const std::string& name) {
  return read_file(checkout("tests/golden/cli_") + name + ".txt");
}

}  // namespace trireme::test
