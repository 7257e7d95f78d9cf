// The list of a struct's fields must contain all of them.

#include "trireme/wire/fields.h"

#include <gtest/gtest.h>

namespace trireme::wire {
namespace {

struct Whole {
  std::int64_t first = 0;
  std::string second;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.first, self.second);
  }
};
struct Forgetful : Whole {
  bool third = false;  ///< not in the inherited list
};
struct Chosen : Whole {
  static constexpr bool kListsSomeFields = true;
  bool third = false;
};
struct ByRule {
  explicit ByRule(int number) : left_out(number) {}
  int left_out;
  template <class Self>
  static auto fields(Self&) {
    return std::tie();
  }
};

TEST(ListedFields, AreCountedForPlainAggregates) {
  EXPECT_TRUE(lists_all_fields<Whole>());
  EXPECT_FALSE(lists_all_fields<Forgetful>());
  EXPECT_TRUE(lists_all_fields<Chosen>());
  EXPECT_TRUE(lists_all_fields<ByRule>());
  const Whole value{.first = 7, .second = "seven"};
  const auto read = decode<Whole>(encode(value));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->first, 7);
  EXPECT_EQ(read->second, "seven");
}

}  // namespace
}  // namespace trireme::wire
