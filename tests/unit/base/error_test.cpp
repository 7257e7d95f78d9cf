#include "trireme/base/error.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Error, EveryKindHasItsExitCode) {
  EXPECT_EQ(InvalidArgument("").exit_code(), 2);
  EXPECT_EQ(CommError("").exit_code(), 3);
  EXPECT_EQ(DataError("").exit_code(), 4);
  EXPECT_EQ(DivergedError("").exit_code(), 5);
  EXPECT_EQ(InternalError("").exit_code(), 70);
}

TEST(Error, RequireThrowsOnlyWhenConditionFails) {
  EXPECT_NO_THROW(require(true, "never"));
  try {
    require(false, "root ", 7, " is not below ", 4);
    FAIL() << "require let a false condition pass";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "root 7 is not below 4");
  }
}

}  // namespace
}  // namespace trireme
