#pragma once
// Names of the table of codecs (trireme/compress/codec.cpp), as values of suites. A codec that is added is a
// case of each suite.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trireme/compress/codec.h"

namespace trireme::test {

/// Without "none".
inline std::vector<std::string> all_codecs() {
  std::vector<std::string> names = compress::codec_names();
  std::erase(names, "none");
  return names;
}

/// With error feedback.
inline std::vector<std::string> codecs_that_leave_out() {
  std::vector<std::string> names = all_codecs();
  std::erase_if(names, [](const std::string& name) { return !compress::codec(name)->leaves_out(); });
  return names;
}

/// A device adds up the scale of a block in another order. Other codecs have the same bytes there.
inline bool has_sums_as_scales(const std::string& codec) { return codec == "qsgd" || codec == "sign"; }

/// Of a case, without characters that names of tests must not contain.
inline std::string name_of_codec(const testing::TestParamInfo<std::string>& row) {
  std::string name = row.param;
  std::erase_if(name, [](char letter) { return letter == '-' || letter == ' '; });
  return name;
}

}  // namespace trireme::test
