#include "tests/support/trace_reading.h"

#include <gtest/gtest.h>

#include "trireme/base/files.h"

namespace trireme::test {
namespace {

using nlohmann::json;
using Rows = std::map<std::pair<int, int>, std::string>;

/// Checks the required fields of the format and their types.
void check_event(const json& event) {
  ASSERT_TRUE(event.is_object());
  const std::string phase = event.at("ph");
  ASSERT_TRUE(phase == "X" || phase == "M") << event;
  EXPECT_TRUE(event.at("name").is_string() && event.at("pid").is_number_integer() &&
              event.at("tid").is_number_integer() && event.at("args").is_object())
      << event;
  if (phase != "X") return;
  EXPECT_TRUE(event.at("cat").is_string() && event.at("ts").is_number() && event.at("dur").is_number())
      << event;
  EXPECT_GE(event.at("dur").get<double>(), 0) << event;
}

void check_rows(const std::vector<TracedSpan>& spans) {
  std::map<std::pair<int, int>, std::vector<TracedSpan>> open;
  for (const TracedSpan& span : spans) {
    auto& stack = open[{span.rank, span.tid}];
    if (!stack.empty()) {
      EXPECT_GE(span.begin_us, stack.back().begin_us) << span.name << " goes back in time on " << span.row;
    }
    // Times have three decimals, so the sum of two may be one rounding unit too large.
    constexpr double kGrain_us = 0.0015;
    while (!stack.empty() && stack.back().end_us <= span.begin_us + kGrain_us) stack.pop_back();
    if (!stack.empty()) {
      EXPECT_LE(span.end_us, stack.back().end_us + kGrain_us)
          << span.name << " and " << stack.back().name << " overlap on " << span.row;
    }
    stack.push_back(span);
  }
}

}  // namespace

std::vector<TracedSpan> TraceReading::of(const std::string& category, int rank) const {
  std::vector<TracedSpan> result;
  for (const TracedSpan& span : spans) {
    if (span.category == category && span.rank == rank) result.push_back(span);
  }
  return result;
}

TraceReading read_trace(const std::filesystem::path& path) {
  TraceReading reading;
  const json file = json::parse(read_file(path));
  Rows rows;
  for (const json& event : file.at("traceEvents")) {
    check_event(event);
    const int rank = event["pid"], tid = event["tid"];
    if (event["ph"] == "X") {
      const double begin = event["ts"], duration = event["dur"];
      reading.spans.push_back({.name = event["name"],
                               .category = event["cat"],
                               .row = rows[{rank, tid}],
                               .rank = rank,
                               .tid = tid,
                               .begin_us = begin,
                               .end_us = begin + duration,
                               .arguments = event["args"]});
    }
    if (event["name"] == "thread_name") rows[{rank, tid}] = event["args"]["name"];
    if (event["name"] == "process_name") reading.ranks[rank] = event["args"]["name"];
    if (event["name"] == "trireme_rank") reading.about[rank] = event["args"];
  }
  check_rows(reading.spans);
  return reading;
}

}  // namespace trireme::test
