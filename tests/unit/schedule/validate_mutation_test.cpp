// Valid programs with one fault. Each is rejected, and the message names the fault.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/schedule/validate.h"

namespace trireme::schedule {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Actions = std::vector<Action>;

Actions::iterator find(Program& program, std::size_t rank, const char* token) {
  const Action wanted = parse_action(token);
  Actions& actions = program.ranks[rank];
  const auto found = std::find_if(actions.begin(), actions.end(), [&](Action action) {
    action.joined = false;
    return action == wanted;
  });
  EXPECT_NE(found, actions.end()) << token << " is not on rank " << rank;
  return found;
}

void drop(Program& program, std::size_t rank, const char* token) {
  program.ranks[rank].erase(find(program, rank, token));
}

void repeat(Program& program, std::size_t rank, const char* token) {
  const auto found = find(program, rank, token);
  program.ranks[rank].insert(found, *found);
}

void swap(Program& program, std::size_t rank, const char* one, const char* other) {
  std::iter_swap(find(program, rank, one), find(program, rank, other));
}

/// Moves `token` before `before`.
void move_before(Program& program, std::size_t rank, const char* token, const char* before) {
  drop(program, rank, token);
  program.ranks[rank].insert(find(program, rank, before), parse_action(token));
}

Program step_of(const char* schedule, LoweringOptions options = {}) {
  return lower(make_schedule(schedule, {.num_ranks = 2, .num_microbatches = 4}), options);
}

struct Mutation {
  const char* name;
  void (*apply)(Program&);
  std::vector<std::string> message;
};

class PipelineMutation : public testing::TestWithParam<Mutation> {
 protected:
  static void expect_rejected(Program program, Transport transport = Transport::kBuffered) {
    GetParam().apply(program);
    for (const std::string& part : GetParam().message) {
      EXPECT_THAT([&] { validate(program, {.transport = transport}); },
                  ThrowsMessage<InvalidArgument>(HasSubstr(part)))
          << to_csv(program);
    }
  }
};

// 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0F3,0SEND_F3,0RECV_B2,0B2,0RECV_B3,0B3,...
// 1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1RECV_F3,1B2,1SEND_B2,1F3,1B3,1SEND_B3,...
class OneFOneBMutation : public PipelineMutation {};
TEST_P(OneFOneBMutation, IsRejectedAndNamed) { expect_rejected(step_of("1f1b")); }

INSTANTIATE_TEST_SUITE_P(
    All, OneFOneBMutation,
    testing::Values(
        Mutation{"DroppedSendForward",
                 [](Program& p) { drop(p, 0, "0SEND_F1"); },
                 {"rank 0, position 8, 0B1: frees the stage's output, which has not been sent"}},
        Mutation{"DroppedSendBackward",
                 [](Program& p) { drop(p, 1, "1SEND_B3"); },
                 {"rank 1, end: 1SEND_B3 is missing"}},
        Mutation{"DroppedReceiveForward",
                 [](Program& p) { drop(p, 1, "1RECV_F2"); },
                 {"rank 1, position 8, 1F2: its input has not been received"}},
        Mutation{"DroppedReceiveBackward",
                 [](Program& p) { drop(p, 0, "0RECV_B0"); },
                 {"rank 0, position 4, 0B0: its gradient of its output has not been received"}},
        Mutation{"DroppedForward",
                 [](Program& p) { drop(p, 0, "0F1"); },
                 {"rank 0, position 2, 0SEND_F1: sent before it is made"}},
        Mutation{"DroppedBackward",
                 [](Program& p) { drop(p, 0, "0B3"); },
                 {"rank 0, position 15, 0REDUCE_GRAD: only 3 of 4 backwards"}},
        Mutation{"DroppedReduce",
                 [](Program& p) { drop(p, 1, "1REDUCE_GRAD"); },
                 {"1STEP: the stage's gradients are not reduced yet"}},
        Mutation{"DroppedStep", [](Program& p) { drop(p, 1, "1STEP"); }, {"rank 1, end: 1STEP is missing"}},
        Mutation{"RepeatedSend",
                 [](Program& p) { repeat(p, 0, "0SEND_F1"); },
                 {"rank 0, position 4, 0SEND_F1: sent already"}},
        Mutation{"RepeatedReceive",
                 [](Program& p) { repeat(p, 1, "1RECV_F1"); },
                 {"rank 1, position 3, 1RECV_F1: received already"}},
        Mutation{"RepeatedForward",
                 [](Program& p) { repeat(p, 0, "0F2"); },
                 {"rank 0, position 7, 0F2: the micro-batch has had its forward already"}},
        Mutation{"RepeatedBackward",
                 [](Program& p) { repeat(p, 1, "1B2"); },
                 {"rank 1, position 12, 1B2: the micro-batch has had its backward already"}},
        Mutation{"SendBeforeForward",
                 [](Program& p) { swap(p, 0, "0F1", "0SEND_F1"); },
                 {"rank 0, position 2, 0SEND_F1: sent before it is made"}},
        Mutation{"BackwardBeforeForward",
                 [](Program& p) { swap(p, 1, "1F1", "1B1"); },
                 {"1B1: backward before the micro-batch's forward"}},
        Mutation{"ReceiveAfterUse",
                 [](Program& p) { swap(p, 1, "1RECV_F0", "1F0"); },
                 {"rank 1, position 0, 1F0: its input has not been received"}},
        Mutation{
            "ReorderedReceivesOfALink", [](Program& p) { swap(p, 1, "1RECV_F0", "1RECV_F1"); }, {"rank 1"}},
        Mutation{"ReorderedSendsOfALink",
                 [](Program& p) { move_before(p, 0, "0SEND_F0", "0RECV_B0"); },
                 {"rank 1, position 0, 1RECV_F0: message 1 from rank 0 is 0SEND_F1 (position 2 there)"}},
        Mutation{"OutputFreedBeforeItIsSent",
                 [](Program& p) { move_before(p, 0, "0SEND_F0", "0F2"); },
                 {"rank 0, position 4, 0B0: frees the stage's output, which has not been sent"}},
        Mutation{"DroppedPair",
                 [](Program& p) {
                   drop(p, 0, "0SEND_F2");
                   drop(p, 1, "1RECV_F2");
                 },
                 {"rank 0, position 12, 0B2: frees the stage's output, which has not been sent"}},
        Mutation{"SendOfTheLastStage",
                 [](Program& p) { p.ranks[1].insert(p.ranks[1].begin() + 2, parse_action("1SEND_F0")); },
                 {"rank 1, position 2, 1SEND_F0: there is no stage at the other end"}},
        Mutation{"ForwardOnTheWrongRank",
                 [](Program& p) {
                   drop(p, 0, "0F3");
                   p.ranks[1].insert(p.ranks[1].begin(), parse_action("0F3"));
                 },
                 {"rank 1, position 0, 0F3: stage 0 belongs to rank 0"}},
        Mutation{
            "CircleOfWaiting",
            [](Program& p) { move_before(p, 0, "0RECV_B0", "0F0"); },
            {"rank 0, position 0, 0RECV_B0: deadlock with transport 'buffered': waits for rank 1; rank 1, "
             "position 0, 1RECV_F0, waits for rank 0"}},
        Mutation{"WorkAfterTheStep",
                 [](Program& p) { p.ranks[0].push_back(parse_action("0SEND_F0")); },
                 {"0SEND_F0: nothing may follow the stage's STEP"}}),
    [](const auto& suite) { return std::string(suite.param.name); });

// Rank 1: ...,1F0,1I0,1SEND_B0,1F1,... with W and sharded weights.
class SplitBackwardMutation : public PipelineMutation {};
TEST_P(SplitBackwardMutation, IsRejectedAndNamed) {
  expect_rejected(step_of("zb-h1", {.max_unsharded_stages = 1}));
}

INSTANTIATE_TEST_SUITE_P(
    All, SplitBackwardMutation,
    testing::Values(
        Mutation{"DroppedWeightGradient", [](Program& p) { drop(p, 1, "1W3"); }, {"only 3 of 4 backwards"}},
        Mutation{"DroppedInputGradient",
                 [](Program& p) { drop(p, 1, "1I1"); },
                 {"1SEND_B1: sent before it is made"}},
        Mutation{"WeightGradientFirst",
                 [](Program& p) { swap(p, 0, "0I1", "0W1"); },
                 {"0W1: weight gradient before the micro-batch's input gradient"}},
        Mutation{"RepeatedWeightGradient",
                 [](Program& p) { repeat(p, 0, "0W1"); },
                 {"0W1: the micro-batch has had its weight gradient already"}},
        Mutation{"WeightsGivenBackTooEarly",
                 [](Program& p) { move_before(p, 0, "0RESHARD", "0W3"); },
                 {"0W3: the stage's weights are not gathered; RESHARD comes too early"}},
        Mutation{"WeightsGatheredTooLate",
                 [](Program& p) { move_before(p, 0, "0UNSHARD", "0F1"); },
                 {"rank 0, position 0, 0F0: the stage's weights are not gathered"}},
        Mutation{"RepeatedUnshard",
                 [](Program& p) { repeat(p, 1, "1UNSHARD"); },
                 {"1UNSHARD: the stage's weights are gathered already"}},
        Mutation{"RepeatedReshard",
                 [](Program& p) { repeat(p, 1, "1RESHARD"); },
                 {"1RESHARD: the stage's weights are not gathered"}},
        Mutation{"RecomputedTooLate",
                 [](Program& p) { p.ranks[0].insert(find(p, 0, "0W0"), parse_action("0RECOMPUTE0")); },
                 {"0RECOMPUTE0: recomputed after the micro-batch's backward"}},
        Mutation{"RecomputedTooEarly",
                 [](Program& p) { p.ranks[0].insert(find(p, 0, "0F0"), parse_action("0RECOMPUTE0")); },
                 {"0RECOMPUTE0: recomputed before the micro-batch's forward"}}),
    [](const auto& suite) { return std::string(suite.param.name); });

class TwoLegMutation : public PipelineMutation {};
TEST_P(TwoLegMutation, IsRejectedAndNamed) { expect_rejected(step_of("dualpipe")); }

INSTANTIATE_TEST_SUITE_P(
    All, TwoLegMutation,
    testing::Values(Mutation{"MicrobatchOnTheOtherReplica",
                             [](Program& p) { find(p, 0, "0W1")->microbatch = 3; },
                             {"0W3: micro-batch 3 of the stage runs on rank 1"}},
                    Mutation{"OneReplicaDoesNotReduce",
                             [](Program& p) { drop(p, 1, "0REDUCE_GRAD"); },
                             {"rank 1", "0STEP: the stage's gradients are not reduced yet"}},
                    Mutation{"ReplicasReduceInDifferentOrder",
                             [](Program& p) { swap(p, 1, "0REDUCE_GRAD", "1REDUCE_GRAD"); },
                             {"0REDUCE_GRAD: deadlock", "waits for rank 1; rank 1"}}),
    [](const auto& suite) { return std::string(suite.param.name); });

TEST(ValidateTransport, LateReceivesDeadlockBlockingSends) {
  const Program program = parse_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_NO_THROW(validate(program, {.form = Form::kTransfers}));
  EXPECT_THAT(
      [&] { validate(program, {.form = Form::kTransfers, .transport = Transport::kRendezvous}); },
      ThrowsMessage<InvalidArgument>(HasSubstr(
          "rank 0, position 3, 0SEND_F1: deadlock with transport 'rendezvous': waits for rank 1; rank 1, "
          "position 3, 1SEND_B0, waits for rank 0")));
}

TEST(ValidateTransport, PairedSendAvoidsDeadlock) {
  const Program program = parse_csv(
      "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)BATCH,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_NO_THROW(validate(program, {.form = Form::kTransfers, .transport = Transport::kRendezvous}));
}

TEST(ValidateOrder, NamesRanksInCircularWait) {
  EXPECT_THAT(
      [] { validate(parse_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"), {.form = Form::kOrder}); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("rank 0, position 1, 0B0: deadlock: waits for rank 1"),
                                           HasSubstr("rank 1, position 0, 1F1, waits for rank 0"))));
}

TEST(ValidateOrder, RejectsBackwardOverlappingItsForward) {
  EXPECT_THAT(
      [] {
        validate(parse_csv("0F0,0F1,0B0,0B1\n(1F0;1B0)OVERLAP_F_B,(1F1;1B1)OVERLAP_F_B\n"),
                 {.form = Form::kOrder});
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("rank 1, position 0, 1F0: cannot run with the rest of (1F0;1B0)OVERLAP_F_B")));
}

TEST(ValidateOrder, RejectsBackwardDuringUnflushedReduction) {
  const auto refused = [](const char* csv, const char* message) {
    Program program = parse_csv(csv);
    program.update_every = 1;
    EXPECT_THAT([&] { validate(program, {.form = Form::kOrder}); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)))
        << csv;
  };
  refused("0F0,0F1,0B0,0REDUCE_GRAD,0B1,0STEP,0REDUCE_GRAD,0STEP\n",
          "rank 0, position 4, 0B1: comes between the stage's REDUCE_GRAD and its STEP");
  refused("0F0,0I0,0F1,0I1,0W0,0REDUCE_GRAD,0W1,0STEP,0REDUCE_GRAD,0STEP\n",
          "rank 0, position 6, 0W1: comes between the stage's REDUCE_GRAD and its STEP");
}

TEST(ValidateOrder, ValidJoinedOrdersCanBeLowered) {
  int joined = 0;
  for (const ScheduleRow& row : schedules()) {
    const Program order = make_schedule(row.name, {.num_ranks = 2, .num_microbatches = 4});
    for (std::size_t rank = 0; rank < order.ranks.size(); ++rank) {
      for (std::size_t i = 0; i + 1 < order.ranks[rank].size(); ++i) {
        Program program = order;
        if (program.ranks[rank][i].kind != ActionKind::kForward || program.ranks[rank][i + 1].joined)
          continue;
        if (!makes_input_gradient(program.ranks[rank][i + 1].kind)) continue;
        program.ranks[rank][i].joined = true;
        ++joined;
        try {
          validate(program, {.form = Form::kOrder});
        } catch (const InvalidArgument&) {
          continue;
        }
        for (const Transport transport : {Transport::kBuffered, Transport::kRendezvous})
          EXPECT_NO_THROW(lower(program, {.transport = transport})) << to_csv(program);
      }
    }
  }
  EXPECT_GT(joined, 0);
}

/// Lowered programs of every schedule over both transports, with sharded weights.
template <class Visit>
void for_each_step(const Visit& visit) {
  for (const ScheduleRow& row : schedules()) {
    for (const Transport transport : {Transport::kBuffered, Transport::kRendezvous}) {
      const Program order = make_schedule(row.name, {.num_ranks = 2, .num_microbatches = 4});
      visit(lower(order, {.transport = transport, .max_unsharded_stages = 1}), transport);
    }
  }
}

bool is_rejected(const Program& program, Transport transport) {
  try {
    validate(program, {.transport = transport});
  } catch (const InvalidArgument&) {
    return true;
  }
  return false;
}

TEST(EveryMutation, OfADroppedActionIsRejected) {
  for_each_step([](const Program& sound, Transport transport) {
    for (std::size_t rank = 0; rank < sound.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < sound.ranks[rank].size(); ++i) {
        Program program = sound;
        program.ranks[rank].erase(program.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_TRUE(is_rejected(program, transport))
            << sound.name << " rank " << rank << " without " << to_text(sound.ranks[rank][i]);
      }
    }
  });
}

TEST(EveryMutation, OfARepeatedActionIsRejected) {
  for_each_step([](const Program& sound, Transport transport) {
    for (std::size_t rank = 0; rank < sound.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < sound.ranks[rank].size(); ++i) {
        Program program = sound;
        Action twice = sound.ranks[rank][i];
        twice.joined = false;
        program.ranks[rank].insert(program.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i), twice);
        EXPECT_TRUE(is_rejected(program, transport))
            << sound.name << " rank " << rank << " with another " << to_text(twice);
      }
    }
  });
}

TEST(EveryMutation, LinkReorderingIsRejected) {
  for_each_step([](const Program& sound, Transport transport) {
    for (std::size_t rank = 0; rank < sound.ranks.size(); ++rank) {
      // For each stage and kind of transfer, which use one link.
      std::map<std::pair<int, ActionKind>, std::size_t> last;
      for (std::size_t i = 0; i < sound.ranks[rank].size(); ++i) {
        const Action& action = sound.ranks[rank][i];
        if (!is_transfer(action.kind) || sound.replicas.size() == 1) continue;
        const auto [before, first] = last.try_emplace({action.stage, action.kind}, i);
        if (!first) {
          Program program = sound;
          std::swap(program.ranks[rank][before->second].microbatch, program.ranks[rank][i].microbatch);
          EXPECT_TRUE(is_rejected(program, transport))
              << sound.name << " rank " << rank << " " << to_text(action);
          before->second = i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace trireme::schedule
