#include "trireme/base/num_fields.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace trireme {
namespace {

struct NoField {
  static constexpr int kConstant = 1;
};
struct OneField {
  std::string text;
};
struct TwoFields {
  int number = 0;
  double share = 1;
};
struct Derived : TwoFields {};
struct DerivedWithMore : TwoFields {
  OneField more;
};
struct ManyFields {
  enum class Kind { kFirst };
  std::optional<int> number;
  std::optional<std::string> text;
  std::optional<TwoFields> both;
  std::vector<std::string> texts;
  std::map<int, TwoFields> by_number;
  std::array<int, 4> four = {};
  std::function<void()> call;
  std::unique_ptr<int> owned;
  std::variant<int, std::string> either;
  TwoFields inner;
  const int constant = 1;
  bool flag = false;
  Kind kind = Kind::kFirst;
};

TEST(NumFields, CountsMembersAndThoseOfBases) {
  EXPECT_EQ(num_fields<NoField>(), 0u);
  EXPECT_EQ(num_fields<OneField>(), 1u);
  EXPECT_EQ(num_fields<TwoFields>(), 2u);
  EXPECT_EQ(num_fields<Derived>(), 2u);
  EXPECT_EQ(num_fields<DerivedWithMore>(), 3u);
  EXPECT_EQ(num_fields<ManyFields>(), 13u);
}

}  // namespace
}  // namespace trireme
