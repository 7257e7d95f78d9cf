// The trace of a run over two processes: one file with both ranks on one clock.

#include <gmock/gmock.h>

#include <set>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trace_reading.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;

std::set<std::string> names(const std::vector<TracedSpan>& spans) {
  std::set<std::string> result;
  for (const TracedSpan& span : spans) result.insert(span.name);
  return result;
}

class TraceOfARun : public testing::Test {
 protected:
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2"};
    for (const std::string& setting :
         {text("run.folder=", folder_.path().string()), std::string("run.name=r"),
          std::string("train.max_steps=12"), std::string("checkpoint.every_steps=5")}) {
      words.insert(words.end(), {"--set", setting});
    }
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  TraceReading traced(const std::vector<std::string>& more, const std::string& file = "r/trace.json") const {
    const ChildResult result = run(command(more), {}, 60);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr("wrote the trace"));
    return read_trace(folder_ / file);
  }

  TemporaryFolder folder_;
};

// The first two steps are skipped, because memory and connections are created in them.
TEST_F(TraceOfARun, TimelineShowsStepTimesAndSimulation) {
  const ChildResult result = run(command({"--timeline", "timeline.html", "--trace-steps", "3:12"}), {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err,
              testing::ContainsRegex("of 10 steps the median took [0-9.]*[1-9][0-9.]* ms, and simulated "
                                     "with the mean times of its actions [0-9.]*[1-9][0-9.]* ms"));
}

TEST_F(TraceOfARun, HasSpansOfBothRanks) {
  const TraceReading trace = traced({"--trace"});
  ASSERT_EQ(trace.ranks.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(trace.ranks.at(rank), HasSubstr(text("rank ", rank)));
    EXPECT_EQ(trace.about.at(rank)["dropped_spans"], 0);
    const std::vector<TracedSpan> steps = trace.of("step", rank);
    ASSERT_EQ(steps.size(), 12u);
    for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].arguments["step"], i + 1);
    EXPECT_THAT(names(trace.of("action", rank)),
                IsSupersetOf({"0F0", "0B0", "0F1", "0B1", "0REDUCE_GRAD", "0STEP"}));
    EXPECT_THAT(names(trace.of("data", rank)), IsSupersetOf({"waiting for data", "batch"}));
    EXPECT_THAT(names(trace.of("comm", rank)), Contains("all_reduce"));
    EXPECT_THAT(names(trace.of("wait", rank)), Contains("waiting for other ranks"));
    EXPECT_THAT(names(trace.of("bucket", rank)), Contains("bucket"));
    EXPECT_EQ(trace.of("evaluation", rank).size(), 1u);
  }
  // Two saves during the run and one at the end, all on rank 0. The training thread records each. The thread
  // that saves in the background records those during the run twice each, for copy and write.
  const std::vector<TracedSpan> saves = trace.of("checkpoint", 0);
  EXPECT_EQ(
      std::count_if(saves.begin(), saves.end(), [](const auto& span) { return span.row == "checkpoint"; }),
      4);
  EXPECT_EQ(std::count_if(saves.begin(), saves.end(), [](const auto& span) { return span.name == "write"; }),
            2);
  EXPECT_EQ(std::count_if(saves.begin(), saves.end(), [](const auto& span) { return span.row == "main"; }),
            3);
}

TEST_F(TraceOfARun, ActionsFitStepsAndWorkersLoadBatches) {
  const TraceReading trace = traced({"--trace"});
  const std::vector<TracedSpan> steps = trace.of("step", 1);
  for (const TracedSpan& action : trace.of("action", 1)) {
    EXPECT_EQ(action.row, "main");
    EXPECT_TRUE(std::any_of(steps.begin(), steps.end(), [&](const TracedSpan& step) {
      return step.begin_us <= action.begin_us && action.end_us <= step.end_us + 0.002;
    })) << action.name;
  }
  for (const TracedSpan& span : trace.of("data", 1)) {
    // While a step waits, other threads help to load rows of its batch.
    EXPECT_THAT(span.row, span.name == "rows"
                              ? testing::StartsWith("data-")
                              : testing::StartsWith(span.name == "batch" ? "data-0" : "main"));
  }
}

/// An all-reduce cannot end on any rank before it has begun on every rank. Unaligned clocks would show that.
TEST_F(TraceOfARun, CollectivesOfTwoRanksOverlap) {
  const TraceReading trace = traced({"--trace"});
  std::map<int, TracedSpan> others;
  for (const TracedSpan& span : trace.of("comm", 1)) others[span.arguments["number"]] = span;
  std::size_t found = 0;
  const double error_us = trace.about.at(1)["clock_error_ns"].get<double>() / 1000;
  for (const TracedSpan& span : trace.of("comm", 0)) {
    if (span.name != "all_reduce") continue;
    EXPECT_EQ(span.arguments["group"], "world");
    EXPECT_GT(span.arguments["bytes"], 0);
    const auto other = others.find(span.arguments["number"].get<int>());
    ASSERT_NE(other, others.end()) << span.arguments;
    EXPECT_EQ(other->second.name, span.name);
    EXPECT_EQ(other->second.arguments["bytes"], span.arguments["bytes"]);
    EXPECT_LT(span.begin_us, other->second.end_us + error_us);
    EXPECT_LT(other->second.begin_us, span.end_us + error_us);
    ++found;
  }
  EXPECT_GE(found, 24u) << "a bucket and a report per step";
  EXPECT_LE(std::abs(trace.about.at(1)["clock_offset_ns"].get<double>()) / 1000, error_us)
      << "one host has one clock";
}

TEST_F(TraceOfARun, CoversGivenStepsInGivenFile) {
  const TraceReading trace =
      traced({"--trace", "other/trace.json", "--trace-steps", "4:6"}, "r/other/trace.json");
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<int> steps;
    for (const TracedSpan& step : trace.of("step", rank)) steps.push_back(step.arguments["step"]);
    EXPECT_THAT(steps, testing::ElementsAre(4, 5, 6));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "r/trace.json"));
}

TEST_F(TraceOfARun, GoesToFileWithQuotesInName) {
  const std::string name = "it's \"this\".json";
  const TraceReading trace = traced({"--trace", name}, "r/" + name);
  EXPECT_FALSE(trace.of("step", 1).empty());
}

TEST_F(TraceOfARun, RejectsPathOutsideFolderBeforeStart) {
  for (const char* option : {"--trace", "--timeline"}) {
    for (const std::string& file : {(folder_ / "victim").string(), std::string("../victim")}) {
      const ChildResult result = run(command({option, file}), {}, 60);
      EXPECT_EQ(result.exit_code, 2) << result.err;
      EXPECT_THAT(result.err, HasSubstr("a path below the folder"));
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(TraceOfARun, IsCompleteWhenTheRunIsInterrupted) {
  ChildProcess child(command({"--trace", "--set", "train.max_steps=0", "--set", "train.epochs=100000",
                              "--set", "run.trace_steps=\"1:20\""}));
  ASSERT_TRUE(child.wait_for_output("test accuracy", 60));
  child.send_signal(SIGTERM);
  const ChildResult result = child.wait(30);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.out << result.err;
  EXPECT_EQ(read_trace(folder_ / "r/trace.json").of("step", 1).size(), 20u);
}

TEST_F(TraceOfARun, WithoutBeingAskedForThereIsNone) {
  EXPECT_EQ(run(command({}), {}, 60).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "r/trace.json"));
}

}  // namespace
}  // namespace trireme::test
