#include "trireme/base/json_nesting.h"

#include <gtest/gtest.h>

#include <string>

namespace trireme {
namespace {

TEST(JsonNesting, CountsBracketsOutsideTextsOnly) {
  EXPECT_FALSE(nests_deeper(R"({"a": [1, {"b": []}], "c": [[]]})", 4));
  EXPECT_TRUE(nests_deeper(R"({"a": [1, {"b": []}]})", 3));
  EXPECT_FALSE(nests_deeper(R"(["[[[[", "\"[[[[", "\\"])", 1));
  EXPECT_TRUE(nests_deeper(R"(["\\", [])", 1));
  EXPECT_TRUE(nests_deeper(std::string(200000, '['), 8));
}

}  // namespace
}  // namespace trireme
