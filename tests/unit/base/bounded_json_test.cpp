#include "trireme/base/bounded_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/support/cpu_limit.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::HasSubstr;

template <class Json>
std::string error_of(std::string_view content, const JsonLimits& limits = {}) {
  try {
    parse_json<Json>(content, limits);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SecurityJson, ReadsTheSameAsNlohmann) {
  const std::string content =
      R"({"b": [1, -2, 2.5, true, null, "\u00e9", {}], "a": {"x": {"y": []}}, "c": 18446744073709551615})";
  EXPECT_EQ(parse_json<json>(content), json::parse(content));
  EXPECT_EQ(parse_json<ordered_json>(content).dump(), ordered_json::parse(content).dump());
  EXPECT_EQ(parse_json<json>("3"), json(3));
}

TEST(SecurityJson, OtherInputIsErrorOfBoundedLength) {
  for (const std::string bad : {"", "{", "[1,", "{\"a\" 1}", "{} {}", "\xff", "1e999", "nan", "{1: 2}"}) {
    EXPECT_THAT(error_of<json>(bad), HasSubstr("not JSON")) << bad;
    EXPECT_THAT(error_of<ordered_json>(bad), HasSubstr("not JSON")) << bad;
  }
  EXPECT_LT(error_of<json>("\"" + std::string(1 << 20, '\x1b')).size(), 1500U);
  EXPECT_EQ(error_of<json>("\"\x1b[31m").find('\x1b'), std::string::npos);
}

TEST(SecurityJson, HasEachKeyOnce) {
  EXPECT_THAT(error_of<json>(R"({"a": 1, "b": 2, "a": 3})"), HasSubstr("key 'a' twice"));
  EXPECT_THAT(error_of<ordered_json>(R"([{"x": {"a": 1, "a": 3}}])"), HasSubstr("key 'a' twice"));
  EXPECT_EQ(error_of<ordered_json>(R"([{"a": {"a": 1}}, {"a": 3}])"), "no error");
}

TEST(SecurityJson, HasLimitsOfDepthAndOfValues) {
  EXPECT_THAT(error_of<json>("[[[1]]]", {.levels = 3}), HasSubstr("no error"));
  EXPECT_THAT(error_of<json>("[[[[1]]]]", {.levels = 3}), HasSubstr("more than 3 levels deep"));
  EXPECT_THAT(error_of<json>(std::string(1 << 20, '[')), HasSubstr("levels deep"));
  EXPECT_THAT(error_of<json>("[1,2,3]", {.values = 4}), HasSubstr("no error"));
  EXPECT_THAT(error_of<json>("[1,2,3,4]", {.values = 4}), HasSubstr("more than 4 values"));
  EXPECT_THAT(error_of<json>("{\"a\":1,\"b\":2}", {.values = 4}), HasSubstr("more than 4 values"));
}

TEST(SecurityJson, ManyKeysTakeLinearTime) {
  std::string content = "{";
  for (int i = 0; i < 300'000; ++i) content += "\"" + std::to_string(i) + "\":{\"a\":{}},";
  content.back() = '}';
  const auto read_both = [&] {
    test::limit_cpu_time(30);
    const JsonLimits limits{.values = 2'000'000};
    const std::size_t members =
        parse_json<ordered_json>(content, limits).size() + parse_json<json>(content, limits).size();
    std::_Exit(members == 600'000 ? 0 : 1);
  };
  EXPECT_EXIT(read_both(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace trireme
