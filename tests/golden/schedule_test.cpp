// Our schedule generators and our lowering, compared with published step programs.

#include <gtest/gtest.h>

#include "tests/golden/known_schedules.h"
#include "tests/support/paths.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/validate.h"

namespace trireme::schedule {
namespace {

const std::string kDataParallel4 = test::checkout("tests/golden/schedule_data_parallel_4.csv");

TEST(ScheduleGolden, DataParallelWithMicrobatchesIsAsWritten) {
  EXPECT_EQ(to_csv(data_parallel(4)), read_file(kDataParallel4));
}

TEST(ScheduleGolden, WrittenProgramIsReadAndRuns) {
  const Program program = parse_csv(read_file(kDataParallel4));
  EXPECT_EQ(program.num_microbatches, 4);
  EXPECT_NO_THROW(validate(program));
}

TEST(ScheduleGolden, OrdersAreThePublishedOnes) {
  int compared = 0;
  for (const KnownProgram& known : known_programs()) {
    if (known.content != "order") continue;
    EXPECT_EQ(to_csv(without_idle(make_schedule(known.schedule, known.options))), known.csv) << known.title;
    ++compared;
  }
  EXPECT_EQ(compared, 28);
}

TEST(ScheduleGolden, TransfersStandWhereThePublishedOnesDo) {
  int compared = 0;
  for (const KnownProgram& known : known_programs()) {
    if (known.content != "transfers" && known.content != "merged") continue;
    Program order = make_schedule(known.schedule, known.options);
    if (known.content == "merged") order = merge_backward(order);
    EXPECT_EQ(to_csv(lower(order, {.with_update = false})), known.csv) << known.title;
    ++compared;
  }
  EXPECT_EQ(compared, 25);
}

TEST(ScheduleGolden, EveryPublishedProgramIsFoundSound) {
  for (const KnownProgram& known : known_programs()) {
    Program program = parse_csv(known.csv);
    if (known.schedule == "dualpipe") program.replicas = ranks_of_stages(program);
    for (const Transport transport : {Transport::kBuffered, Transport::kRendezvous}) {
      EXPECT_NO_THROW(validate(program, {.form = form_of(program), .transport = transport})) << known.title;
      if (has_transfers(program)) continue;
      const Program lowered = lower(program, {.transport = transport});
      EXPECT_NO_THROW(validate(lowered, {.transport = transport})) << known.title;
    }
  }
}

}  // namespace
}  // namespace trireme::schedule
