#include "trireme/wire/elastic_world.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const ElasticWorld kWorld{.generation = 3, .ranks = {{"0.0", 0}, {"1.4", 1}, {"0.7", 0}}};

TEST(ElasticWorld, TextIsReadAsItWasWritten) { EXPECT_EQ(parse_elastic_world(to_text(kWorld)), kWorld); }

TEST(ElasticWorld, RanksOfHostCountInOrder) {
  EXPECT_EQ(kWorld.rank_of("0.7"), 2);
  EXPECT_EQ(kWorld.rank_of("0.1"), -1);
  EXPECT_EQ(kWorld.local_rank_of(2), 1);
  EXPECT_EQ(kWorld.local_rank_of(1), 0);
  EXPECT_EQ(kWorld.local_size_of(0), 2);
  EXPECT_EQ(kWorld.local_size_of(1), 1);
}

TEST(ElasticWorld, RejectsMalformedText) {
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

TEST(HostReport, TextIsReadAsItWasWritten) {
  const HostReport report{.beat = 7,
                          .capacity = 4,
                          .is_leaving = true,
                          .members = {{"1.0-0"}, {"1.spare-0", MemberState::kFailedForGood, 5}}};
  EXPECT_EQ(parse_host_report(to_text(report)), report);
  EXPECT_EQ(parse_host_report(to_text(HostReport{})), HostReport{});
  for (const char* wrong :
       {"", "1 2\n", "1 2 3", "1 2 0\nx", "1 2 0\n9 0 a\n", "1 2 0\n0 0 \n", "1 2 0\n0 a\n"})
    EXPECT_THROW(parse_host_report(wrong), CommError) << wrong;
}

TEST(JobState, TextIsReadAsItWasWritten) {
  for (const JobState& each :
       {JobState{}, JobState{.generation = 3, .wants_next = true, .stop_signal = 15},
        JobState{.generation = 1, .end = JobEnd{.exit_code = 3, .reason = "two\nlines 4"}},
        JobState{.generation = 1, .end = JobEnd{}}})
    EXPECT_EQ(parse_job_state(to_text(each)), each);
  for (const char* wrong : {"", "1 0 0", "1 0 0 1", "1 0 0 1 3", "1 0 0 0 3\nx", "x 0 0 0", "1 0 0 0\n"})
    EXPECT_THROW(parse_job_state(wrong), CommError) << wrong;
}

TEST(WaitingMember, RejectsMalformedText) {
  for (const char* wrong : {"", "1 2", "0\nx", "1 x\n"})
    EXPECT_THROW(parse_waiting_member(wrong), CommError) << wrong;
}

}  // namespace
}  // namespace trireme::wire
