#pragma once
// Reads a trace file as a viewer does. Checks that spans nest in each row, as in every valid trace. Needs no
// torch.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace trireme::test {

/// A complete event of a trace. Times in microseconds.
struct TracedSpan {
  std::string name, category;
  std::string row;  ///< name of its thread or lane
  int rank = 0, tid = 0;
  double begin_us = 0, end_us = 0;
  nlohmann::json arguments;
};

struct TraceReading {
  std::vector<TracedSpan> spans;        ///< in the order of the file
  std::map<int, std::string> ranks;     ///< names of the processes
  std::map<int, nlohmann::json> about;  ///< metadata of each rank

  std::vector<TracedSpan> of(const std::string& category, int rank) const;
};

/// Checks each event against the format and adds a failure to the test for each violation. Rows that go back
/// in time are violations. So are spans of one row that overlap without nesting.
TraceReading read_trace(const std::filesystem::path& path);

}  // namespace trireme::test
