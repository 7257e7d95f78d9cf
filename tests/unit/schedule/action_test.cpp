#include "trireme/schedule/action.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Action, TextFormIsReadBack) {
  for (const char* token : {"0F0", "2F31", "0B7", "0REDUCE_GRAD", "11STEP"}) {
    EXPECT_EQ(to_text(parse_action(token)), token);
  }
}

TEST(Action, PartsAreRead) {
  const Action expected{.stage = 2, .kind = ActionKind::kBackward, .microbatch = 13};
  EXPECT_EQ(parse_action("2B13"), expected);
  EXPECT_EQ(parse_action("3STEP").microbatch, Action::kNoMicrobatch);
}

TEST(Action, ForeignTokenIsQuoted) {
  for (const char* token : {"", "F0", "0", "0X1", "0F", "0F1x", "0STEP1", "0F99999999999", "-1F0", "0f0"}) {
    EXPECT_THAT([&] { parse_action(token); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text("'", token, "' is not an action"))));
  }
}

}  // namespace
}  // namespace trireme::schedule
