#include "trireme/wire/elastic_world.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const ElasticWorld kWorld{.generation = 3, .ranks = {{"0.0", 0}, {"1.4", 1}, {"0.7", 0}}};

TEST(ElasticWorld, TextIsReadAsItWasWritten) { EXPECT_EQ(parse_elastic_world(to_text(kWorld)), kWorld); }

TEST(ElasticWorld, RanksOfAHostCountInTheirOrder) {
  EXPECT_EQ(kWorld.rank_of("0.7"), 2);
  EXPECT_EQ(kWorld.rank_of("0.1"), -1);
  EXPECT_EQ(kWorld.local_rank_of(2), 1);
  EXPECT_EQ(kWorld.local_rank_of(1), 0);
  EXPECT_EQ(kWorld.local_size_of(0), 2);
  EXPECT_EQ(kWorld.local_size_of(1), 1);
}

TEST(ElasticWorld, RejectsWhatIsNoWorld) {
  for (const char* wrong :
       {"", "1", "1\n", "x\n0 a\n", "1\n0\n", "1\n0 \n", "-1\n0 a\n", "1\n0 a", "1\n9999999 a\n"})
    EXPECT_THAT([&] { parse_elastic_world(wrong); },
                ThrowsMessage<CommError>(HasSubstr("different versions")))
        << wrong;
}

TEST(WaitingMember, TextIsReadAsItWasWritten) {
  for (const WaitingMember& each :
       {WaitingMember{.sizes = {1, 2, 4}, .cause = "rank 2\nended"}, WaitingMember{.sizes = {}, .cause = ""}})
    EXPECT_EQ(parse_waiting_member(to_text(each)), each);
}

TEST(WaitingMember, RejectsWhatIsNone) {
  for (const char* wrong : {"", "1 2", "0\nx", "1 x\n"})
    EXPECT_THROW(parse_waiting_member(wrong), CommError) << wrong;
}

}  // namespace
}  // namespace trireme::wire
