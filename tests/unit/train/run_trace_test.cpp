#include "trireme/train/report/run_trace.h"

#include <gmock/gmock.h>

#include "tests/support/temporary_folder.h"
#include "tests/support/trace_reading.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/train/run/run.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(TraceSteps, AreTwoNumbersWithAColon) {
  const telemetry::TraceOptions all = trace_options({.trace = "trace.json"});
  EXPECT_LE(all.first_step, 1);
  EXPECT_EQ(all.last_step, INT64_MAX);
  const telemetry::TraceOptions some = trace_options({.trace = "trace.json", .trace_steps = "100:120"});
  EXPECT_EQ(some.first_step, 100);
  EXPECT_EQ(some.last_step, 120);
}

TEST(TraceSteps, AnythingElseIsRejected) {
  for (const char* steps : {"7", ":", "1:", ":5", "5:4", "0:4", "1:2:3", "a:b", "1-4", " 1:4"}) {
    EXPECT_THAT([&] { trace_options({.trace = "trace.json", .trace_steps = steps}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("expected FIRST:LAST")))
        << steps;
  }
  EXPECT_THAT([] { trace_options({.trace_steps = "1:4"}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("none is asked for")));
}

/// Three ranks of one process. The traces of ranks share no state.
TEST(RunTrace, HoldsEachThreadRankOnce) {
  const test::TemporaryFolder folder;
  RunConfig config;
  config.run = {.name = "r", .folder = folder.path().string(), .trace = "trace.json"};
  config.data.name = "synthetic";
  config.model.hidden = {8};
  config.train = {.max_steps = 5, .global_batch = 512};
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    run_training(config, context);
    EXPECT_EQ(context.trace(), nullptr) << "off again behind the run";
  });
  const test::TraceReading trace = test::read_trace(folder / "r/trace.json");
  ASSERT_EQ(trace.ranks.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(trace.of("step", rank).size(), 5u);
}

/// Four ranks, two pipelines of two.
TEST(RunTimeline, DrawsThreeStepsWithStageLayers) {
  const test::TemporaryFolder folder;
  RunConfig config;
  config.run = {.name = "r", .folder = folder.path().string(), .timeline = "timeline.html"};
  config.data.name = "synthetic";
  config.model.hidden = {8, 8};
  config.train = {.max_steps = 7, .global_batch = 512};
  config.parallel.pipeline = 2;
  config.parallel.cuts = {1};
  config.parallel.microbatches = 2;
  comm::run_ranks_as_threads(4, [&](comm::Context& context) { run_training(config, context); });
  const std::string page = read_file(folder / "r/timeline.html");
  for (const char* words : {"rank 0", "rank 3", "4 ranks, 2 stages", "step 3", "step 4", "step 5", "1f1b",
                            "<td>1</td><td>fc2 to fc3</td>"})
    EXPECT_THAT(page, HasSubstr(words));
  for (const char* words : {"rank 4", "step 2", "step 6"}) EXPECT_THAT(page, testing::Not(HasSubstr(words)));
  EXPECT_FALSE(std::filesystem::exists(folder / "r/trace.json"));
}

TEST(RunTimeline, ShowsAllReplicasWithoutWarmUp) {
  const test::TemporaryFolder folder;
  RunConfig config;
  config.run = {
      .name = "r", .folder = folder.path().string(), .trace = "trace.json", .timeline = "timeline.html"};
  config.data.name = "synthetic";
  config.model.hidden = {8};
  config.train = {.max_steps = 4, .global_batch = 512};
  comm::run_ranks_as_threads(2, [&](comm::Context& context) { run_training(config, context); });
  const std::string page = read_file(folder / "r/timeline.html");
  for (const char* words : {"2 ranks, 1 stage,", "rank 1", "step 3", "step 4", "0STEP"})
    EXPECT_THAT(page, HasSubstr(words));
  for (const char* words : {"step 1", "step 2"}) EXPECT_THAT(page, testing::Not(HasSubstr(words)));
}

TEST(RunTimeline, MissingStepIsWarning) {
  const test::TemporaryFolder folder;
  RunConfig config;
  config.run = {.name = "r", .folder = folder.path().string(), .timeline = "timeline.html"};
  config.data.name = "synthetic";
  config.model.hidden = {8};
  config.train = {.max_steps = 2, .global_batch = 512};
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const RunResult result = run_training(config, context);
    EXPECT_EQ(result.status, "completed");
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "r/timeline.html"));
}

// For any requested files. A timeline without a trace uses its own steps.
TEST(RunTrace, ResumedRunHasSeparateTrace) {
  struct Case {
    const char* trace;
    int stages, more_ranks;
  };
  for (const auto& [trace, stages, more_ranks] :
       {Case{"", 1, 3}, Case{"trace.json", 1, 3}, Case{"trace.json", 2, 4}}) {
    SCOPED_TRACE(text("trace '", trace, "', ", stages, " stages"));
    const test::TemporaryFolder folder;
    RunConfig config;
    config.run = {.name = "r", .folder = folder.path().string(), .trace = trace, .timeline = "timeline.html"};
    config.data.name = "synthetic";
    config.model.hidden = {8, 8};
    config.parallel.pipeline = stages;
    if (stages > 1) config.parallel.microbatches = 2;
    config.checkpoint.every_steps = 1;
    config.train = {.epochs = 100, .global_batch = 512};
    for (const int steps : {6, 12, 18}) {
      config.train.max_steps = steps;
      const RunPlan plan{.start = steps == 6 ? RunStart::kFresh : RunStart::kResume};
      comm::run_ranks_as_threads(steps == 12 ? more_ranks : 2,
                                 [&](comm::Context& context) { run_training(config, context, plan); });
    }
    const auto shows = [&](const char* file, int from, int ranks) {
      const std::string page = read_file(folder / "r" / file);
      for (int step = 1; step <= 18; ++step) {
        const bool is_drawn = page.find(text("step ", step, "<")) != std::string::npos ||
                              page.find(text("step ", step, "\"")) != std::string::npos;
        EXPECT_EQ(is_drawn, step >= from && step < from + 3) << file << ", step " << step;
      }
      EXPECT_THAT(page, HasSubstr(text(ranks, " ranks")));
    };
    shows("timeline.until-step-6.html", 3, 2);
    shows("timeline.until-step-12.html", 9, more_ranks);
    shows("timeline.html", 15, 2);
    if (*trace == 0) continue;
    for (const auto& [file, ranks] : {std::pair("trace.until-step-6.json", 2),
                                      {"trace.until-step-12.json", more_ranks},
                                      {"trace.json", 2}}) {
      const test::TraceReading reading = test::read_trace(folder / "r" / file);
      EXPECT_EQ(reading.ranks.size(), static_cast<std::size_t>(ranks)) << file;
      EXPECT_EQ(reading.of("step", 0).size(), 6u) << file;
    }
  }
}

TEST(RunTrace, ErrorLeavesPartOfEachRank) {
  const test::TemporaryFolder folder;
  RunConfig config;
  config.run = {.name = "r", .folder = folder.path().string(), .trace = "trace.json"};
  config.data.name = "synthetic";
  config.model.hidden = {8};
  config.train = {.max_steps = 50, .global_batch = 512};
  config.optimizer.lr = 1e30;
  EXPECT_THROW(comm::run_ranks_as_threads(2, [&](comm::Context& context) { run_training(config, context); }),
               DivergedError);
  for (int rank = 0; rank < 2; ++rank) {
    const test::TraceReading part = test::read_trace(folder / text("r/trace.rank", rank, ".json"));
    EXPECT_EQ(part.ranks.size(), 1u);
    EXPECT_GE(part.of("step", rank).size(), 1u);
  }
}

TEST(RunTrace, SecondErrorKeepsPartsOfFirst) {
  const test::TemporaryFolder folder;
  RunConfig config;
  config.run = {.name = "r", .folder = folder.path().string(), .trace = "trace.json"};
  config.data.name = "synthetic";
  config.model.hidden = {8};
  config.checkpoint.every_steps = 1;
  config.train = {.max_steps = 50, .global_batch = 512};
  config.optimizer.lr = 1e30;  // the loss of the second step is never finite
  const auto part_of = [&](int rank, const char* until) {
    return folder / text("r/trace.rank", rank, until, ".json");
  };
  std::vector<std::string> first;
  for (const RunStart start : {RunStart::kFresh, RunStart::kResume}) {
    EXPECT_THROW(comm::run_ranks_as_threads(
                     2, [&](comm::Context& context) { run_training(config, context, {.start = start}); }),
                 DivergedError);
    if (start == RunStart::kFresh) first = {read_file(part_of(0, "")), read_file(part_of(1, ""))};
  }
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(std::filesystem::exists(part_of(rank, ".until-step-1")));
    EXPECT_EQ(read_file(part_of(rank, ".until-step-1")), first[static_cast<std::size_t>(rank)]);
    EXPECT_NE(read_file(part_of(rank, "")), first[static_cast<std::size_t>(rank)]);
  }
}

}  // namespace
}  // namespace trireme::train
