#include "trireme/telemetry/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

using Json = nlohmann::ordered_json;

/// A row of the timeline: a thread, or one of the lanes of a buffer.
struct Row {
  std::string name;
  std::vector<TraceSpan> spans;
};

/// Sorts by begin. A span precedes those inside it.
void sort_by_time(std::vector<TraceSpan>& spans) {
  std::sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    return std::make_tuple(a.begin_ns, -a.end_ns) < std::make_tuple(b.begin_ns, -b.end_ns);
  });
}

/// Rows without overlapping spans: each span goes to the first row that is free when it begins.
std::vector<Row> in_lanes(const std::string& name, std::vector<TraceSpan> spans) {
  sort_by_time(spans);
  std::vector<Row> lanes;
  for (const TraceSpan& span : spans) {
    auto lane = std::find_if(lanes.begin(), lanes.end(),
                             [&](const Row& row) { return row.spans.back().end_ns <= span.begin_ns; });
    if (lane == lanes.end()) {
      lanes.push_back({lanes.empty() ? name : text(name, " (", lanes.size() + 1, ")"), {}});
      lane = std::prev(lanes.end());
    }
    lane->spans.push_back(span);
  }
  return lanes;
}

/// Threads first, in the order of appearance; then the lanes.
std::vector<Row> rows_of(const Trace& trace) {
  std::vector<Row> rows, lanes;
  std::map<int, std::size_t> row_of_thread;
  for (const TraceBuffer* buffer : trace.buffers()) {
    std::vector<TraceSpan> overlapping;
    const auto row_of = [&](int thread) -> Row& {
      const auto [at, is_new] = row_of_thread.try_emplace(thread, rows.size());
      if (is_new) rows.push_back({thread == buffer->thread() ? buffer->name() : text("thread ", thread), {}});
      return rows[at->second];
    };
    if (buffer->thread() != 0) row_of(buffer->thread());
    buffer->for_each([&](const TraceSpan& span) {
      (span.thread == 0 ? overlapping : row_of(span.thread).spans).push_back(span);
    });
    for (Row& lane : in_lanes(buffer->name(), std::move(overlapping))) lanes.push_back(std::move(lane));
  }
  for (Row& row : rows) sort_by_time(row.spans);
  rows.insert(rows.end(), std::make_move_iterator(lanes.begin()), std::make_move_iterator(lanes.end()));
  return rows;
}

std::string json_text(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json metadata(const char* name, int rank, const Json& arguments) {
  return {{"name", name}, {"ph", "M"}, {"pid", rank}, {"tid", 0}, {"args", arguments}};
}

/// Appends nanoseconds as microseconds.
void append_us(std::string& out, std::int64_t ns) {
  char buffer[40];
  const long long size = std::abs(ns);
  std::snprintf(buffer, sizeof buffer, "%s%lld.%03lld", ns < 0 ? "-" : "", size / 1000, size % 1000);
  out += buffer;
}

void append_span(std::string& out, const TraceSpan& span, std::size_t row, const TracePartOptions& options) {
  const std::int64_t begin_ns = options.clock.of_rank_0(span.begin_ns);
  const std::int64_t end_ns = options.clock.of_rank_0(span.end_ns);
  out += text(kTraceSeparator, "{\"name\":", json_text(span.name), ",\"cat\":\"", span.category,
              "\",\"ph\":\"X\",\"pid\":", options.rank, ",\"tid\":", row, ",\"ts\":");
  append_us(out, begin_ns);
  out += ",\"dur\":";
  append_us(out, std::max<std::int64_t>(0, end_ns - begin_ns));
  std::vector<std::string> arguments;
  if (span.group != nullptr) arguments.push_back("\"group\":" + json_text(span.group));
  for (const TraceArgument& argument : span.arguments) {
    if (argument.key != nullptr) arguments.push_back(text('"', argument.key, "\":", argument.value));
  }
  out += text(",\"args\":{", join(arguments, ","), "}}");
}

}  // namespace

std::size_t num_spans(const Trace& trace) {
  std::size_t count = 0;
  for (const TraceBuffer* buffer : trace.buffers()) {
    buffer->for_each([&](const TraceSpan&) { ++count; });
  }
  return count;
}

std::string trace_part(const Trace& trace, const TracePartOptions& options) {
  const int rank = options.rank;
  const std::vector<Row> rows = rows_of(trace);
  std::size_t spans = 0;
  for (const Row& row : rows) spans += row.spans.size();
  const std::uint64_t dropped = trace.num_dropped();
  std::vector<Json> about = {
      metadata("process_name", rank, {{"name", text("rank ", rank, " on ", options.host)}}),
      metadata("process_sort_index", rank, {{"sort_index", rank}}),
      metadata("trireme_rank", rank,
               {{"pid", ::getpid()},
                {"spans", spans},
                {"dropped_spans", dropped},
                {"clock_offset_ns", options.clock.last().offset_ns},
                {"clock_error_ns", options.clock.error_ns()}})};
  if (dropped > 0) {
    about.push_back(metadata("process_labels", rank, {{"labels", text(dropped, " later spans dropped")}}));
  }
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (Json& name : std::vector<Json>{metadata("thread_name", rank, {{"name", rows[row].name}}),
                                        metadata("thread_sort_index", rank, {{"sort_index", row}})}) {
      name["tid"] = row;
      about.push_back(std::move(name));
    }
  }
  std::vector<std::string> lines;
  for (const Json& each : about) lines.push_back(each.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::string out = join(lines, kTraceSeparator);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (const TraceSpan& span : rows[row].spans) append_span(out, span, row, options);
  }
  return out;
}

}  // namespace trireme::telemetry
