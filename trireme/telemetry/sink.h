#pragma once
// The interface of a run's reports: a Record is one event ("step", "eval", "end") with named values, and a
// Sink writes records: to a JSONL file, to the console. The trainer writes each record to all of its sinks
// and depends on none of them. A sink is used by one thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::telemetry {

/// A value of a record; the writer escapes text.
using FieldValue = std::variant<std::int64_t, double, std::string>;

/// One event of a run, with its values.
struct Record {
  std::string event;
  std::vector<std::pair<std::string, FieldValue>> fields;  ///< in the order in which they are written

  /// The number under that name; `otherwise` when there is none.
  double number(std::string_view name, double otherwise) const;
  /// The text under that name; empty when there is none.
  std::string words(std::string_view name) const;
  bool has(std::string_view name) const;
};

class Sink {
 public:
  virtual ~Sink() = default;
  /// One event, in the order in which they happen, on the thread that reports.
  virtual void write(const Record& record) = 0;
};

/// The record as one JSON object on one line, "event" first; numbers that are not finite become null.
std::string to_json_line(const Record& record);

}  // namespace trireme::telemetry
