#include "trireme/schedule/program.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/schedule/validate.h"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(DataParallelProgram, RunsEachMicrobatchThenReducesThenSteps) {
  EXPECT_EQ(to_csv(data_parallel(1)), "0F0,0B0,0REDUCE_GRAD,0STEP\n");
  EXPECT_EQ(to_csv(data_parallel(2, 2)),
            "0F0,1F0,1B0,0B0,0F1,1F1,1B1,1REDUCE_GRAD,0B1,0REDUCE_GRAD,0STEP,1STEP\n");
  EXPECT_EQ(to_csv(data_parallel(3)), "0F0,0B0,0F1,0B1,0F2,0B2,0REDUCE_GRAD,0STEP\n");
}

TEST(DataParallelProgram, NeedsAMicrobatch) {
  EXPECT_THAT([] { data_parallel(0); }, ThrowsMessage<InvalidArgument>(HasSubstr("at least 1 micro-batch")));
}

TEST(ProgramCsv, IsReadBack) {
  const Program program = data_parallel(4);
  const Program read = parse_csv(to_csv(program));
  EXPECT_EQ(read.ranks, program.ranks);
  EXPECT_EQ(read.num_stages, 1);
  EXPECT_EQ(read.num_microbatches, 4);
}

TEST(ProgramCsv, ErrorNamesLineAndToken) {
  EXPECT_THAT([] { parse_csv("0F0,0B0\n1F0, 1Q0,1B0\n"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("line 2, token 2: '1Q0'")));
  EXPECT_THAT([] { parse_csv("\n"); }, ThrowsMessage<InvalidArgument>(HasSubstr("line 1")));
  EXPECT_THAT([] { parse_csv("0F0\n,,\n"); }, ThrowsMessage<InvalidArgument>(HasSubstr("line 2")));
}

TEST(ProgramCsv, ByteOrderMarkIsNoAction) {
  EXPECT_EQ(to_csv(parse_csv("\xef\xbb\xbf# of a spreadsheet\r\n0F0,0B0\r\n")), "0F0,0B0\n");
}

TEST(ProgramCsv, RejectsImpossibleNumbersWithLimits) {
  for (const char* csv : {"2147483647F0,2147483647B0\n", "0F2147483647\n", "1000000F1000000\n"}) {
    EXPECT_THAT([&] { parse_csv(csv); },
                ThrowsMessage<InvalidArgument>(HasSubstr("stages times micro-batches are at most 4000000")))
        << csv;
  }
}

TEST(ProgramCsv, IdleSlotsPairsAndRemarksAreRead) {
  const char* rows = "0F0,0F1,,(0F2;0B0)OVERLAP_F_B\n,1F0,(1SEND_B0;1RECV_F1)BATCH,1STEP\n";
  const Program read = parse_csv(std::string("# made by hand\n") + rows);
  EXPECT_EQ(to_csv(read), rows);
  EXPECT_EQ(read.num_stages, 2);
  EXPECT_EQ(read.num_microbatches, 3);
  EXPECT_EQ(to_csv(without_idle(read)), "0F0,0F1,(0F2;0B0)OVERLAP_F_B\n1F0,(1SEND_B0;1RECV_F1)BATCH,1STEP\n");
}

TEST(ValidateProgram, AcceptsDataParallel) {
  for (int microbatches : {1, 2, 8}) {
    EXPECT_NO_THROW(validate(data_parallel(microbatches)));
    EXPECT_NO_THROW(validate(data_parallel(microbatches, 3)));
  }
}

TEST(ValidateProgram, AcceptsTwoStagesInAnyLegalOrder) {
  EXPECT_NO_THROW(
      validate(parse_csv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0STEP\n"
                         "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1STEP\n")));
}

struct Mutation {
  const char* name;
  const char* csv;
  const char* message;
};

class ValidateMutation : public testing::TestWithParam<Mutation> {};

TEST_P(ValidateMutation, IsRejectedAndNamed) {
  Program program = parse_csv(GetParam().csv);
  program.num_microbatches = 2;
  EXPECT_THAT([&] { validate(program); }, ThrowsMessage<InvalidArgument>(HasSubstr(GetParam().message)));
}

// Each is "0F0,0B0,0F1,0B1,0REDUCE_GRAD,0STEP" with one fault.
INSTANTIATE_TEST_SUITE_P(
    DataParallel, ValidateMutation,
    testing::Values(Mutation{"DroppedForward", "0F0,0B0,0B1,0REDUCE_GRAD,0STEP",
                             "rank 0, position 2, 0B1: backward before the micro-batch's forward"},
                    Mutation{"DroppedBackward", "0F0,0B0,0F1,0REDUCE_GRAD,0STEP",
                             "rank 0, position 3, 0REDUCE_GRAD: only 1 of 2 backwards"},
                    Mutation{"DroppedMicrobatch", "0F0,0B0,0REDUCE_GRAD,0STEP",
                             "rank 0, position 2, 0REDUCE_GRAD: only 1 of 2 backwards"},
                    Mutation{"DroppedReduce", "0F0,0B0,0F1,0B1,0STEP",
                             "rank 0, position 4, 0STEP: the stage's gradients are not reduced yet"},
                    Mutation{"DroppedStep", "0F0,0B0,0F1,0B1,0REDUCE_GRAD", "rank 0, end: 0STEP is missing"},
                    Mutation{"DuplicatedForward", "0F0,0F0,0B0,0F1,0B1,0REDUCE_GRAD,0STEP",
                             "rank 0, position 1, 0F0: the micro-batch has had its forward already"},
                    Mutation{"DuplicatedBackward", "0F0,0B0,0B0,0F1,0B1,0REDUCE_GRAD,0STEP",
                             "rank 0, position 2, 0B0: the micro-batch has had its backward already"},
                    Mutation{"DuplicatedReduce", "0F0,0B0,0F1,0B1,0REDUCE_GRAD,0REDUCE_GRAD,0STEP",
                             "rank 0, position 5, 0REDUCE_GRAD: the stage's gradients are reduced already"},
                    Mutation{"DuplicatedStep", "0F0,0B0,0F1,0B1,0REDUCE_GRAD,0STEP,0STEP",
                             "rank 0, position 6, 0STEP: nothing may follow the stage's STEP"},
                    Mutation{"BackwardBeforeForward", "0B0,0F0,0F1,0B1,0REDUCE_GRAD,0STEP",
                             "rank 0, position 0, 0B0: backward before"},
                    Mutation{"ReduceBeforeLastBackward", "0F0,0B0,0F1,0REDUCE_GRAD,0B1,0STEP",
                             "rank 0, position 3, 0REDUCE_GRAD: only 1 of 2 backwards"},
                    Mutation{"ForwardAfterReduce", "0F0,0B0,0F1,0B1,0REDUCE_GRAD,0F1,0STEP",
                             "rank 0, position 5, 0F1: the micro-batch has had its forward already"},
                    Mutation{"StepBeforeReduce", "0F0,0B0,0F1,0B1,0STEP,0REDUCE_GRAD",
                             "rank 0, position 4, 0STEP: the stage's gradients are not reduced yet"},
                    Mutation{"ForwardAfterStep", "0F0,0B0,0F1,0B1,0REDUCE_GRAD,0STEP,0F0",
                             "rank 0, position 6, 0F0: nothing may follow"},
                    Mutation{"MicrobatchOutOfRange", "0F0,0B0,0F2,0B2,0REDUCE_GRAD,0STEP",
                             "rank 0, position 2, 0F2: micro-batches are 0 to 1"},
                    Mutation{"StageOnTwoRanks", "0F0,0B0,0F1,0B1,0REDUCE_GRAD\n0STEP",
                             "rank 1, position 0, 0STEP: stage 0 belongs to rank 0"},
                    Mutation{"StageOfNobody", "1F0,1B0,1F1,1B1,1REDUCE_GRAD,1STEP", "no rank has stage 0"}),
    [](const auto& suite) { return suite.param.name; });

TEST(ValidateProgram, RejectsProgramsThatTextCannotExpress) {
  Program program = data_parallel(1);
  program.ranks[0][2].microbatch = 0;
  EXPECT_THAT([&] { validate(program); },
              ThrowsMessage<InvalidArgument>(HasSubstr("belongs to no micro-batch")));
  program = data_parallel(1);
  program.ranks[0][0].stage = 1;
  EXPECT_THAT([&] { validate(program); }, ThrowsMessage<InvalidArgument>(HasSubstr("stages are 0 to 0")));
  program = data_parallel(1);
  program.ranks.clear();
  EXPECT_THAT([&] { validate(program); }, ThrowsMessage<InvalidArgument>(HasSubstr("at least 1 stage")));
}

}  // namespace
}  // namespace trireme::schedule
