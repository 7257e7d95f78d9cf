#include "cli/launch/screen.h"

#include <gtest/gtest.h>

namespace trireme::cli {
namespace {

TEST(LaunchScreen, TooLongBarLosesWholeFields) {
  constexpr std::string_view kBar = "[===   ] step 970/1876  loss 0.3142  12 samples/s";
  EXPECT_EQ(Screen::cut_between_fields(kBar, kBar.size()), kBar);
  EXPECT_EQ(Screen::cut_between_fields(kBar, 34), "[===   ] step 970/1876");
  EXPECT_EQ(Screen::cut_between_fields(kBar, 36), "[===   ] step 970/1876  loss 0.3142");
  EXPECT_EQ(Screen::cut_between_fields("step 970/1876", 6), "");
}

}  // namespace
}  // namespace trireme::cli
