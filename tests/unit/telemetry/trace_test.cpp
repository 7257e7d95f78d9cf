#include "trireme/telemetry/trace.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/telemetry/trace_file.h"

namespace trireme::telemetry {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

json parsed(const Trace& trace, const TracePartOptions& options = {}) {
  return json::parse(kTraceBegin + trace_part(trace, options) + kTraceEnd)["traceEvents"];
}

std::vector<json> events(const json& all, const std::string& phase, const std::string& name) {
  std::vector<json> result;
  for (const json& event : all) {
    if (event["ph"] == phase && event["name"] == name) result.push_back(event);
  }
  return result;
}

std::string row_name(const json& all, const json& span) {
  for (const json& each : events(all, "M", "thread_name")) {
    if (each["tid"] == span["tid"]) return each["args"]["name"];
  }
  return "none";
}

TEST(Trace, SpansNestOnTheirThread) {
  Trace trace;
  trace.begin_step(7);
  {
    const TraceScope step(&trace.main(), "step", "step", {"step", 7});
    const TraceScope inner(&trace.main(), "action", "0F0");
  }
  std::thread([&] { const TraceScope read(&trace.add_thread("data-0"), "data", "batch"); }).join();
  const json all = parsed(trace, {.rank = 3, .host = "here"});
  const json step = events(all, "X", "step").at(0), inner = events(all, "X", "0F0").at(0);
  EXPECT_EQ(step["pid"], 3);
  EXPECT_EQ(step["cat"], "step");
  EXPECT_EQ(step["args"], json({{"step", 7}}));
  EXPECT_EQ(step["tid"], inner["tid"]);
  EXPECT_LE(step["ts"], inner["ts"]);
  EXPECT_GE(step["ts"].get<double>() + step["dur"].get<double>(),
            inner["ts"].get<double>() + inner["dur"].get<double>());
  EXPECT_EQ(row_name(all, step), "main");
  EXPECT_EQ(row_name(all, events(all, "X", "batch").at(0)), "data-0");
  EXPECT_EQ(events(all, "M", "process_name").at(0)["args"]["name"], "rank 3 on here");
}

TEST(Trace, OffIsANullPointer) {
  EXPECT_EQ(main_of(nullptr), nullptr);
  const TraceScope nothing(nullptr, "step", "step");
}

TEST(Trace, OnlyTheChosenStepsAreRecorded) {
  Trace trace({.first_step = 3, .last_step = 4});
  for (std::int64_t step = 1; step <= 6; ++step) {
    trace.begin_step(step);
    const TraceScope span(&trace.main(), "step", "step", {"step", step});
  }
  std::vector<int> steps;
  for (const json& span : events(parsed(trace), "X", "step")) steps.push_back(span["args"]["step"]);
  EXPECT_THAT(steps, ElementsAre(3, 4));
}

TEST(Trace, KeepsFirstSpansAndCountsLostOnes) {
  Trace trace({.max_spans = 1024});
  for (int i = 0; i < 2000; ++i)
    trace.main().add({.begin_ns = i, .end_ns = i + 1, .thread = trace.main().thread()});
  EXPECT_EQ(num_spans(trace), 1024u);
  EXPECT_EQ(trace.num_dropped(), 976u);
  const json all = parsed(trace);
  EXPECT_EQ(events(all, "M", "trireme_rank").at(0)["args"]["dropped_spans"], 976);
  EXPECT_EQ(events(all, "M", "process_labels").at(0)["args"]["labels"], "976 later spans dropped");
}

TEST(Trace, OverlappingSpansGetSeparateLanes) {
  Trace trace;
  TraceBuffer& group = trace.add_lanes("group world");
  for (const auto& [begin, end] : std::vector<std::pair<int, int>>{{0, 50}, {10, 20}, {20, 60}, {50, 70}}) {
    group.add({.begin_ns = begin * 1000, .end_ns = end * 1000, .category = "comm", .name = "all_reduce"});
  }
  const json all = parsed(trace);
  std::vector<std::string> rows;
  for (const json& span : events(all, "X", "all_reduce")) {
    rows.push_back(row_name(all, span) + " " + span["ts"].dump());
  }
  EXPECT_THAT(rows, UnorderedElementsAre("group world 0.0", "group world (2) 10.0", "group world (2) 20.0",
                                         "group world 50.0"));
}

TEST(Trace, WritersDoNotDisturbAReader) {
  Trace trace;
  trace.begin_step(1);
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&trace] {
      TraceBuffer& mine = trace.add_thread("writer");
      for (int n = 0; n < 2000; ++n) const TraceScope span(&mine, "data", trace.intern("batch"), {"n", n});
    });
  }
  std::size_t seen = 0;
  while (seen < 6000) {
    const std::size_t now = num_spans(trace);
    EXPECT_GE(now, seen);
    seen = now;
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(events(parsed(trace), "X", "batch").size(), 6000u);
}

TEST(AlignedClock, IsStraightLineBetweenMeasurements) {
  const AlignedClock clock({.at_ns = 1000, .offset_ns = 500}, {.at_ns = 3000, .offset_ns = 700});
  EXPECT_EQ(clock.of_rank_0(0), 500);
  EXPECT_EQ(clock.of_rank_0(1000), 1500);
  EXPECT_EQ(clock.of_rank_0(2000), 2600);
  EXPECT_EQ(clock.of_rank_0(3000), 3700);
  EXPECT_EQ(clock.of_rank_0(9000), 9700);
  Trace trace;
  trace.main().add({.begin_ns = 2000, .end_ns = 3500, .name = "x", .thread = trace.main().thread()});
  const json span = events(parsed(trace, {.rank = 0, .host = "", .clock = clock}), "X", "x").at(0);
  EXPECT_EQ(span["ts"], 2.6);
  EXPECT_EQ(span["dur"], 1.6);
}

TEST(AlignedClock, HasErrorOfWorseMeasurement) {
  for (const bool worse_first : {true, false}) {
    const AlignedClock clock({.at_ns = 1, .error_ns = worse_first ? 900 : 20},
                             {.at_ns = 2, .error_ns = worse_first ? 20 : 900});
    Trace trace;
    trace.main().add({.begin_ns = 1, .end_ns = 2, .name = "x", .thread = trace.main().thread()});
    const json about = parsed(trace, {.rank = 1, .host = "", .clock = clock});
    EXPECT_EQ(events(about, "M", "trireme_rank").at(0)["args"]["clock_error_ns"], 900) << worse_first;
  }
}

}  // namespace
}  // namespace trireme::telemetry
