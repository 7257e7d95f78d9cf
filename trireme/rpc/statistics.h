#pragma once
// Counts and times of calls of a function, at one worker. Values.

#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace trireme::rpc {

/// Of the calls of one function.
struct FunctionStatistics {
  std::uint64_t num_calls = 0, num_errors = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  /// Calls that took less than 2^i microseconds, and not less than half of it.
  std::array<std::uint64_t, 40> latencies = {};

  /// Counts one call that took so long.
  void add_latency(double seconds);
  /// An upper bound, in seconds, of the time of this part of the calls; 0 without calls.
  double latency_s(double quantile) const;
};

struct Statistics {
  std::map<std::string, FunctionStatistics> made;    ///< calls of this worker, by function
  std::map<std::string, FunctionStatistics> served;  ///< of others, which it has answered
};

}  // namespace trireme::rpc
