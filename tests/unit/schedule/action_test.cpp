#include "trireme/schedule/action.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Action, TextFormIsReadBack) {
  for (const char* token : {"0F0", "2F31", "0B7", "1I2", "1W2", "3SEND_F0", "3RECV_F0", "3SEND_B12",
                            "3RECV_B1", "0UNSHARD", "0RESHARD", "0REDUCE_GRAD", "2RECOMPUTE3", "11STEP"}) {
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

TEST(Cell, TextFormIsReadBack) {
  for (const char* token : {"", "0F0", "(0F3;7B1)OVERLAP_F_B", "(0F3;7I1)OVERLAP_F_B",
                            "(0SEND_F3;0RECV_B1)BATCH", "(0SEND_F3;1SEND_B2;0RECV_B1)BATCH"}) {
    EXPECT_EQ(to_text(Cell(parse_cell(token))), token);
  }
  EXPECT_EQ(cells_of(parse_cell("(0F3;7B1)OVERLAP_F_B")).size(), 1U);
}

TEST(Cell, ForeignTokenIsQuoted) {
  for (const char* token :
       {"(0F3;7B1", "(0F3;7B1)", "(0F3;7B1)TOGETHER", "(0F3)OVERLAP_F_B", "(7B1;0F3)OVERLAP_F_B",
        "(0F3;7W1)OVERLAP_F_B", "(0SEND_F3)BATCH", "(0SEND_F3;0F1)BATCH"}) {
    EXPECT_THAT([&] { parse_cell(token); }, ThrowsMessage<InvalidArgument>(HasSubstr(text("'", token, "'"))));
  }
  EXPECT_THAT([] { parse_cell("(0F3;)OVERLAP_F_B"); }, ThrowsMessage<InvalidArgument>(HasSubstr("''")));
}

}  // namespace
}  // namespace trireme::schedule
