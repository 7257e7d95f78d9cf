#include <gtest/gtest.h>

#include "trireme/base/files.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {
namespace {

constexpr const char* kDataParallel4 = TRIREME_SOURCE_DIR "/tests/golden/schedule_data_parallel_4.csv";

TEST(ScheduleGolden, DataParallelOverFourMicrobatchesIsAsWritten) {
  EXPECT_EQ(to_csv(data_parallel(4)), read_file(kDataParallel4));
}

TEST(ScheduleGolden, WrittenProgramIsReadAndRuns) {
  const Program program = parse_csv(read_file(kDataParallel4));
  EXPECT_EQ(program.num_microbatches, 4);
  EXPECT_NO_THROW(validate(program));
}

}  // namespace
}  // namespace trireme::schedule
