#include "trireme/schedule/lowering.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/schedule/validate.h"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Program one_f_one_b_of_two() { return make_schedule("1f1b", {.num_ranks = 2, .num_microbatches = 2}); }

TEST(Lower, WholeStepReducesAndSteps) {
  EXPECT_EQ(to_csv(lower(one_f_one_b_of_two())),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0STEP\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1STEP\n");
}

TEST(Lower, RendezvousPairsSendWithNextReceive) {
  EXPECT_EQ(to_csv(lower(one_f_one_b_of_two(), {.transport = Transport::kRendezvous, .with_update = false})),
            "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)BATCH,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(Lower, WeightsAreGatheredBeforeUseAndReleased) {
  const Program order = make_schedule("looped-bfs", {.num_ranks = 1, .num_chunks = 3, .num_microbatches = 1});
  EXPECT_EQ(
      to_csv(lower(order, {.with_update = false, .max_unsharded_stages = 2})),
      "0UNSHARD,1UNSHARD,0F0,0RESHARD,2UNSHARD,1F0,2F0,2B0,2RESHARD,0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
}

TEST(Lower, ReplicasReduceAtEndInOrder) {
  const Program step = lower(make_schedule("dualpipe", {.num_ranks = 2, .num_microbatches = 4}));
  for (const std::vector<Action>& actions : step.ranks) {
    const std::vector<Action> last(actions.end() - 4, actions.end());
    EXPECT_EQ(to_csv({.name = "", .ranks = {last}}), "0REDUCE_GRAD,1REDUCE_GRAD,0STEP,1STEP\n");
  }
}

TEST(Lower, RejectsLoweredProgram) {
  const Program step = lower(one_f_one_b_of_two());
  EXPECT_THAT([&] { lower(step); }, ThrowsMessage<InvalidArgument>(HasSubstr("says already where to send")));
}

TEST(Lower, RejectsAnOrderThatWaitsForItself) {
  EXPECT_THAT([] { lower(parse_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("rank 0, position 1, 0B0: deadlock")));
}

TEST(MergeBackward, MergesAdjacentBackwards) {
  const Program merged = merge_backward(parse_csv("0F0,0I0,,0W0,0F1,0I1,0F2,0W1,0I2,0W2\n"));
  EXPECT_EQ(to_csv(merged), "0F0,0B0,0F1,0I1,0F2,0W1,0B2\n");
}

TEST(TransportName, IsReadBack) {
  for (const char* name : {"buffered", "rendezvous"}) EXPECT_EQ(to_text(parse_transport(name)), name);
  EXPECT_THAT([] { parse_transport("buffred"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'buffered'?")));
}

}  // namespace
}  // namespace trireme::schedule
