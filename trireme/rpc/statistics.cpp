#include "trireme/rpc/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace trireme::rpc {

void FunctionStatistics::add_latency(double seconds) {
  const auto microseconds = static_cast<std::uint64_t>(std::max(seconds, 0.0) * 1e6);
  ++latencies[std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(microseconds)),
                                    latencies.size() - 1)];
}

double FunctionStatistics::latency_s(double quantile) const {
  std::uint64_t all = 0, so_far = 0;
  for (const std::uint64_t each : latencies) all += each;
  for (std::size_t i = 0; i < latencies.size() && all > 0; ++i) {
    so_far += latencies[i];
    if (static_cast<double>(so_far) >= quantile * static_cast<double>(all))
      return std::ldexp(1e-6, static_cast<int>(i));
  }
  return 0;
}

}  // namespace trireme::rpc
