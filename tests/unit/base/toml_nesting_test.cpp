#include "trireme/base/toml_nesting.h"

#include <gtest/gtest.h>

#include <string>

namespace trireme {
namespace {

std::string key_of(int parts, const std::string& part = "a") {
  std::string key = part;
  for (int i = 1; i < parts; ++i) key += "." + part;
  return key;
}

TEST(TomlNesting, IsThatOfTheLongestKey) {
  EXPECT_EQ(line_of_deep_key(key_of(kMaxKeyParts) + " = 1"), std::nullopt);
  EXPECT_EQ(line_of_deep_key(key_of(kMaxKeyParts + 1) + " = 1"), 1);
  EXPECT_EQ(line_of_deep_key("x = 1\n[" + key_of(100000) + "]\ny = 2\n"), 2);
  EXPECT_EQ(line_of_deep_key("x = { " + key_of(100, "\"a b\"") + " = 1 }"), 1);
  EXPECT_EQ(line_of_deep_key(key_of(100, " 'a' ") + " = 1"), 1);
}

TEST(TomlNesting, CountsNoDotsOfTextsNumbersComments) {
  const std::string dots(1000, '.');
  std::string numbers = "0.5";
  for (int i = 0; i < 1000; ++i) numbers += ", 0.5";
  for (const std::string& line : {"# " + dots, "x = \"" + dots + "\"", "x = '" + dots + "'",
                                  "x = \"\"\"\n" + dots + "\n\"\"\"", "x = [" + numbers + "]"})
    EXPECT_EQ(line_of_deep_key("run.name = 'a'\n" + line + "\n"), std::nullopt) << line.substr(0, 20);
}

TEST(TomlNesting, NoTextHidesAKeyAfterIt) {
  const std::string deep = "\n" + key_of(100) + " = 1\n";
  for (const char* line : {"x = \"\"", "x = ''", "x = \"\\\"\"", "x = '\\'", "x = \"\"\"a\"\"\"\"",
                           "x = '''\n'''''", "x = \"\"\"\\\"\"\"\"", "# \"", "x = 1 # '''"})
    EXPECT_NE(line_of_deep_key(line + deep), std::nullopt) << line;
  EXPECT_EQ(line_of_deep_key("x = \"\"\"\n\n\"\"\"" + deep), 4);
}

}  // namespace
}  // namespace trireme
