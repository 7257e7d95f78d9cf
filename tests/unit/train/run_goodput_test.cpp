// The wall time of runs by kind, in their reports, also over a failure and a resume.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/telemetry/goodput.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::Not;

class RunGoodput : public SmallRuns {
 protected:
  static constexpr const char* kShares[] = {
      "goodput",      "goodput_data_wait", "goodput_saving",    "goodput_evaluation",
      "goodput_lost", "goodput_starting",  "goodput_recovering"};

  nlohmann::json summary(const std::string& name) const {
    return nlohmann::json::parse(file(name, "summary.json"));
  }
  static void expect_whole(const nlohmann::json& summary) {
    double sum = 0;
    for (const char* share : kShares) {
      EXPECT_GE(summary.at(share).get<double>(), 0) << share;
      sum += summary.at(share).get<double>();
    }
    EXPECT_NEAR(sum, 1, 1e-9);
  }
  RunConfig saved_every_four(const std::string& name) const {
    RunConfig result = config(name);
    result.checkpoint.every_steps = 4;
    return result;
  }
  /// Ends with an error at the report of step 9, during step 10.
  void fail_once(const RunConfig& config) {
    callbacks_.on_step = [](const StepReport& report) {
      if (report.step == 9) throw DataError("the disk is gone");
    };
    EXPECT_THROW(run(2, config), DataError);
    callbacks_.on_step = nullptr;
  }
};

TEST_F(RunGoodput, SharesSumToOneInEveryReport) {
  const RunResult result = run(2, config("quiet"));
  const nlohmann::json found = summary("quiet");
  expect_whole(found);
  for (const char* share : {"goodput", "goodput_saving", "goodput_evaluation", "goodput_starting"})
    EXPECT_GT(found.at(share).get<double>(), 0) << share;
  EXPECT_EQ(found.at("goodput_lost"), 0);
  EXPECT_EQ(found.at("goodput_recovering"), 0);
  EXPECT_EQ(found.at("lost_steps"), 0);
  EXPECT_EQ(found.at("interruptions"), 0);
  EXPECT_GE(found.at("goodput_wall_s").get<double>(), result.steps_s);
  EXPECT_LE(found.at("goodput_wall_s").get<double>(), result.wall_s + 0.01) << "begins with the call";
  EXPECT_THAT(file("quiet", "report.html"),
              HasSubstr("<h3>Goodput: shares of the wall time of all starts</h3>"));
  EXPECT_THAT(file("quiet", "report.html"), HasSubstr("<tr><td>waiting for data</td>"));
  EXPECT_THAT(file("quiet", "report.html"), Not(HasSubstr("<td>goodput data wait</td>")));
  EXPECT_EQ(num_lines(file("quiet", "console.log"), telemetry::describe(result.goodput)), 1U);
}

TEST_F(RunGoodput, FailureLosesStepsAfterCheckpoint) {
  const RunConfig failing = saved_every_four("failing");
  fail_once(failing);
  const auto interrupted = telemetry::read_goodput(folder_ / "failing/goodput.json").value();
  EXPECT_FALSE(interrupted.ended);
  EXPECT_EQ(interrupted.steps, 10);

  run(2, failing, RunStart::kResume);
  const nlohmann::json found = summary("failing");
  expect_whole(found);
  EXPECT_EQ(found.at("lost_steps"), 2) << "9 and 10, after the checkpoint of step 8";
  EXPECT_EQ(found.at("interruptions"), 1);
  EXPECT_GT(found.at("goodput_lost").get<double>(), 0);
  EXPECT_GT(found.at("goodput_recovering").get<double>(), 0);
  EXPECT_THAT(file("failing", "console.log"), HasSubstr("(2 steps)"));
  const auto ended = telemetry::read_goodput(folder_ / "failing/goodput.json").value();
  EXPECT_TRUE(ended.ended);
  EXPECT_EQ(ended.steps, 12);
  EXPECT_GT(ended.wall_s(), interrupted.wall_s());
}

TEST_F(RunGoodput, ResumeAfterRegularEndIsNoInterruption) {
  run(1, config("extended"));
  const double first_s = summary("extended").at("goodput_wall_s");
  RunConfig longer = config("extended");
  longer.train.max_steps = 20;
  longer.train.epochs = 4;
  run(2, longer, RunStart::kResume);
  const nlohmann::json found = summary("extended");
  expect_whole(found);
  EXPECT_EQ(found.at("interruptions"), 0);
  EXPECT_EQ(found.at("lost_steps"), 0);
  EXPECT_EQ(found.at("goodput_recovering"), 0);
  EXPECT_GT(found.at("goodput_wall_s").get<double>(), first_s);
}

TEST_F(RunGoodput, NewRunOfNameBeginsAtZero) {
  const RunConfig failing = saved_every_four("again");
  fail_once(failing);
  run(2, failing);
  EXPECT_EQ(summary("again").at("interruptions"), 0);
  EXPECT_EQ(summary("again").at("lost_steps"), 0);
}

TEST_F(RunGoodput, DamagedRecordIsWarningOnly) {
  const RunConfig failing = saved_every_four("damaged");
  fail_once(failing);
  write_file_atomic(folder_ / "damaged/goodput.json", "{\"status\":\"running\"}");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(2, failing, RunStart::kResume).status, "completed");
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("expected 'training_s', a number of 0 or more; the goodput of this run counts from now on"));
  expect_whole(summary("damaged"));
}

TEST_F(RunGoodput, SavesOnTrainingThreadCountAsSaving) {
  RunConfig waits = saved_every_four("waits");
  waits.checkpoint.asynchronous = false;
  const RunResult result = run(2, waits);
  EXPECT_GE(result.goodput.seconds[static_cast<std::size_t>(telemetry::Phase::kSaving)],
            result.checkpoint_stall_s);
  expect_whole(summary("waits"));
}

}  // namespace
}  // namespace trireme::train
