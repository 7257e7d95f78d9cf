#pragma once
// Reads a trace file as a viewer does, and what every good one has: rows on which spans nest. Needs no torch.

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
  std::map<int, nlohmann::json> about;  ///< what each rank says of itself

  std::vector<TracedSpan> of(const std::string& category, int rank) const;
};

/// Checks each event against the format and adds a failure to the test for what breaks it, for rows that go
/// back in time, and for spans of one row that overlap without one being inside the other.
TraceReading read_trace(const std::filesystem::path& path);

}  // namespace trireme::test
