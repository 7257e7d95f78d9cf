// The accounting of a run's wall time, over its starts.

#include "trireme/telemetry/goodput.h"

#include <gmock/gmock.h>

#include <cmath>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/unix_time.h"

namespace trireme::telemetry {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

double seconds_of(const GoodputRecord& record, Phase phase) {
  return record.seconds[static_cast<std::size_t>(phase)];
}

/// 100 steps in 60 s, the first 50 of which took 40 s. Saves took 10 s, and the start 30 s.
GoodputRecord killed() {
  return {.seconds = {60, 0, 10, 0, 0, 30, 0},
          .steps = 100,
          .until_unix_s = 1000,
          .ended = false,
          .marks = {{50, 40}, {80, 50}}};
}

TEST(GoodputRecord, SharesAddUpToOne) {
  const GoodputRecord record = killed();
  EXPECT_EQ(record.wall_s(), 100);
  double sum = 0;
  for (std::size_t phase = 0; phase < kNumPhases; ++phase) sum += record.share(static_cast<Phase>(phase));
  EXPECT_DOUBLE_EQ(sum, 1);
  EXPECT_DOUBLE_EQ(record.share(Phase::kTraining), 0.6);
  EXPECT_EQ(GoodputRecord{}.share(Phase::kTraining), 0);
}

TEST(GoodputRecord, TrainingAfterTheCheckpointIsLost) {
  const GoodputRecord record = continued(killed(), 50);
  EXPECT_EQ(seconds_of(record, Phase::kTraining), 40);
  EXPECT_EQ(seconds_of(record, Phase::kLost), 20);
  EXPECT_EQ(record.lost_steps, 50);
  EXPECT_EQ(record.interruptions, 1);
  EXPECT_EQ(record.steps, 50);
  EXPECT_EQ(record.wall_s(), 100);
  ASSERT_EQ(record.marks.size(), 1U);
  EXPECT_EQ(record.marks.front().step, 50);
}

TEST(GoodputRecord, TrainingGrowsEvenlyBetweenTwoMarks) {
  const GoodputRecord record = killed();
  EXPECT_EQ(record.training_until_s(0), 0);
  EXPECT_EQ(record.training_until_s(25), 20);
  EXPECT_EQ(record.training_until_s(65), 45);
  EXPECT_EQ(record.training_until_s(90), 55);
  EXPECT_EQ(record.training_until_s(100), 60);
  EXPECT_EQ(record.training_until_s(999), 60);
  EXPECT_EQ(seconds_of(continued(killed(), 0), Phase::kLost), 60) << "no checkpoint was there";
}

TEST(GoodputRecord, RegularEndIsNoInterruption) {
  GoodputRecord ended = killed();
  ended.ended = true;
  const GoodputRecord record = continued(ended, 100);
  EXPECT_EQ(record.interruptions, 0);
  EXPECT_EQ(record.lost_steps, 0);
  EXPECT_TRUE(std::isinf(record.between_interruptions_s()));
  EXPECT_EQ(continued(continued(killed(), 50), 50).between_interruptions_s(), 50);
}

TEST(GoodputRecord, IsReadAsItWasWritten) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(read_goodput(folder / "goodput.json"), std::nullopt);
  GoodputRecord record = killed();
  record.lost_steps = 7;
  record.interruptions = 2;
  write_goodput(folder / "goodput.json", record);
  const GoodputRecord found = read_goodput(folder / "goodput.json").value();
  EXPECT_EQ(found.seconds, record.seconds);
  EXPECT_EQ(found.steps, 100);
  EXPECT_EQ(found.lost_steps, 7);
  EXPECT_EQ(found.interruptions, 2);
  EXPECT_EQ(found.until_unix_s, 1000);
  EXPECT_FALSE(found.ended);
  ASSERT_EQ(found.marks.size(), 2U);
  EXPECT_EQ(found.marks[1].step, 80);
  EXPECT_EQ(found.marks[1].training_s, 50);
}

TEST(GoodputRecord, DamagedFileIsNamedWithReason) {
  const test::TemporaryFolder folder;
  const auto path = folder / "goodput.json";
  const auto with = [&](const std::string& old_text, const std::string& new_text) {
    write_goodput(path, killed());
    std::string content = read_file(path);
    content.replace(content.find(old_text), old_text.size(), new_text);
    write_file_atomic(path, content);
    return path;
  };
  const auto reads = [](const std::filesystem::path& file) { return [file] { read_goodput(file); }; };
  EXPECT_THAT(
      reads(with("\"saving_s\":10", "\"saving_s\":-1")),
      ThrowsMessage<DataError>(HasSubstr("goodput.json: expected 'saving_s', a number of 0 or more")));
  EXPECT_THAT(reads(with("\"steps\":100", "\"steps\":1e300")),
              ThrowsMessage<DataError>(HasSubstr("a count")));
  EXPECT_THAT(reads(with("\"mark_1_step\":80", "\"mark_1_step\":40")),
              ThrowsMessage<DataError>(HasSubstr("step 40 of mark 1 is out of order")));
  EXPECT_THAT(reads(with("\"mark_1_step\":80", "\"mark_1_step\":101")),
              ThrowsMessage<DataError>(HasSubstr("out of order")));
  write_file_atomic(path, "");
  EXPECT_THAT(reads(path), ThrowsMessage<DataError>(HasSubstr("goodput.json")));
}

TEST(GoodputRecord, DescriptionOmitsSharesRoundedToZero) {
  GoodputRecord record = continued(killed(), 50);
  EXPECT_EQ(
      describe(record),
      "goodput 40.0 % of 1m 40s: saving 10.0 %, lost 20.0 % (50 steps), starting 30.0 %; interruptions: 1");
  EXPECT_EQ(describe({.seconds = {2, 0, 0, 0, 0, 0, 0}}), "goodput 100.0 % of 2.0 s");
}

class GoodputMeterTest : public testing::Test {
 protected:
  static void pass_time() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
  void open(GoodputMeter& meter, std::int64_t step, double began_unix_s = unix_now_s()) const {
    meter.open(path_, read_goodput(path_), step, began_unix_s, Log());
  }

  const test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "goodput.json";
};

TEST_F(GoodputMeterTest, EveryInstantIsCountedOnce) {
  GoodputMeter meter;
  const double began = unix_now_s();
  open(meter, 0, began - 5);
  pass_time();
  meter.begin_steps();
  pass_time();
  meter.step(/*data_wait_s=*/0.004, /*saving_s=*/0.003);
  pass_time();
  meter.lap(Phase::kEvaluation);
  pass_time();
  meter.saved(1);
  meter.step(/*data_wait_s=*/1e9, /*saving_s=*/1e9);
  meter.end(2);
  const GoodputRecord& record = meter.record();
  EXPECT_GE(seconds_of(record, Phase::kStarting), 5.02);
  EXPECT_GE(seconds_of(record, Phase::kDataWait), 0.004);
  EXPECT_GE(seconds_of(record, Phase::kTraining), 0.012);
  EXPECT_GE(seconds_of(record, Phase::kEvaluation), 0.02);
  EXPECT_GE(seconds_of(record, Phase::kSaving), 0.023);
  EXPECT_NEAR(record.wall_s(), record.until_unix_s - (began - 5), 1e-3);
  EXPECT_TRUE(read_goodput(path_)->ended);
}

TEST_F(GoodputMeterTest, RestartCountsFromLastMeasurement) {
  GoodputRecord earlier = killed();
  earlier.until_unix_s = unix_now_s() - 100;
  write_goodput(path_, earlier);
  GoodputMeter meter;
  open(meter, 80, unix_now_s() - 3);
  meter.begin_steps();
  const GoodputRecord found = read_goodput(path_).value();
  EXPECT_GE(seconds_of(found, Phase::kRecovering), 100);
  EXPECT_EQ(seconds_of(found, Phase::kStarting), 30) << "of the first start alone";
  EXPECT_EQ(seconds_of(found, Phase::kLost), 10);
  EXPECT_EQ(found.lost_steps, 20);
  EXPECT_EQ(found.interruptions, 1);
}

TEST_F(GoodputMeterTest, TimeBeforeResumeDoesNotCount) {
  GoodputRecord earlier = killed();
  earlier.ended = true;
  write_goodput(path_, earlier);  // fifty years ago
  GoodputMeter meter;
  open(meter, 100, unix_now_s() - 3);
  meter.begin_steps();
  EXPECT_GE(seconds_of(meter.record(), Phase::kStarting), 33);
  EXPECT_LT(meter.record().wall_s(), 1e6);
  EXPECT_EQ(seconds_of(meter.record(), Phase::kRecovering), 0);
}

TEST_F(GoodputMeterTest, SlowClockTakesNoTimeAway) {
  GoodputRecord earlier = killed();
  earlier.until_unix_s = unix_now_s() + 1e6;
  write_goodput(path_, earlier);
  GoodputMeter meter;
  open(meter, 80);
  meter.begin_steps();
  EXPECT_GE(seconds_of(meter.record(), Phase::kRecovering), 0);
  EXPECT_LT(seconds_of(meter.record(), Phase::kRecovering), 1e3);
}

TEST_F(GoodputMeterTest, KeepsTheNewestMarks) {
  GoodputMeter meter;
  open(meter, 0);
  for (int step = 1; step <= 70; ++step) meter.saved(step);
  meter.saved(70);
  meter.write(70);
  const auto marks = read_goodput(path_)->marks;
  ASSERT_EQ(marks.size(), GoodputRecord::kMaxMarks);
  EXPECT_EQ(marks.front().step, 7);
  EXPECT_EQ(marks.back().step, 70);
}

TEST_F(GoodputMeterTest, MeasuresAndWritesNothingUntilOpen) {
  GoodputMeter meter;
  meter.lap(Phase::kTraining);
  meter.step(0, 0);
  meter.saved(3);
  meter.write(3);
  EXPECT_EQ(meter.record().wall_s(), 0);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(GoodputMeterTest, UnwritableFileIsOneWarning) {
  GoodputMeter meter;
  meter.open(folder_ / "none/goodput.json", std::nullopt, 0, unix_now_s(), Log());
  testing::internal::CaptureStderr();
  meter.begin_steps();
  meter.write(1);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("the goodput of this run is not kept for a restart"));
  EXPECT_EQ(said.find("not kept"), said.rfind("not kept"));
}

}  // namespace
}  // namespace trireme::telemetry
