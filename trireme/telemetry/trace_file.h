#pragma once
// The file of a trace, which chrome://tracing and ui.perfetto.dev open: JSON in the Trace Event Format
// (Google, "Trace Event Format", 2016: complete events "X", metadata "M"). A process is a rank; its threads
// are the threads of the rank, and below them lanes for spans that overlap. Times are microseconds on rank
// 0's monotonic clock. A file is the begin, parts of ranks with the separator between them, and the end:
// parts are made on their ranks and put together without being parsed. Functions without state.

#include <string>

#include "trireme/telemetry/aligned_clock.h"
#include "trireme/telemetry/trace.h"

namespace trireme::telemetry {

constexpr const char* kTraceBegin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
/// Separator between the parts of two ranks.
constexpr const char* kTraceSeparator = ",\n";
/// End of the file.
constexpr const char* kTraceEnd = "\n]}\n";

/// Whose spans a part holds, and how their times become rank 0's.
struct TracePartOptions {
  int rank = 0;
  std::string host;
  AlignedClock clock{ClockSample{}};
};

/// All spans of the rank, and its identity: JSON objects with commas between them.
std::string trace_part(const Trace& trace, const TracePartOptions& options);

/// Number of spans that the trace holds.
std::size_t num_spans(const Trace& trace);

}  // namespace trireme::telemetry
