#include "trireme/train/estimate/internal/exchange_times.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::train {
namespace {

/// The fraction of a tensor's bytes that each of `ranks` sends in a reduce-scatter or all-gather.
double share_sent(int ranks) { return 1.0 - 1.0 / ranks; }

/// A line that was measured on `measured_ranks` ranks (or hosts), for a group of `ranks`. The fixed part
/// scales with the messages in a ring, the other part with the bytes sent.
double seconds_of(const CostLine& line, double bytes, int measured_ranks, int ranks) {
  if (ranks == 1) return 0;
  const double messages = static_cast<double>(ranks - 1) / std::max(measured_ranks - 1, 1);
  const double sent = share_sent(ranks) / share_sent(std::max(measured_ranks, 2));
  return line.fixed_s * messages + line.unit_s * bytes * sent;
}

/// A group among others like it, which exchange at the same time over the links of their hosts.
struct GroupOnHosts {
  int hosts = 1, lanes = 1;  ///< hosts of the group; groups that share the links of a host
};

/// Of a group that spans hosts.
GroupOnHosts on_hosts(int ranks, int span, int ranks_of_host) {
  const int distance = std::max(span / ranks, 1), members_of_host = std::max(ranks_of_host / distance, 1);
  return {.hosts = std::max((ranks + members_of_host - 1) / members_of_host, 2),
          .lanes = std::max(ranks_of_host / members_of_host, 1)};
}

}  // namespace

bool is_within_host(const Measurements& measured, int span) {
  return measured.ranks_of_host > 0 && measured.ranks_of_host % span == 0;
}

const ExchangeCosts& ExchangeTimes::over(int span) const {
  return is_within_host(measured_, span) && measured_.within_host.ranks > 1 ? measured_.within_host
                                                                            : measured_.exchanges;
}

double ExchangeTimes::exchange_s(CostLine ExchangeCosts::*line, double bytes, int ranks, int span) const {
  if (ranks > 1 && measured_.links.is_described()) {
    const GroupOfRanks group{.ranks = ranks, .span = span};
    return line == &ExchangeCosts::all_reduce ? all_reduce_s(measured_.links, group, bytes)
                                              : trireme::train::gather_s(measured_.links, group, bytes);
  }
  const ExchangeCosts& costs = over(span);
  const int ranks_of_host = measured_.ranks_of_host;
  if (ranks == 1 || ranks_of_host == 0 || is_within_host(measured_, span) || costs.ranks < 2 * ranks_of_host)
    return seconds_of(costs.*line, bytes, costs.ranks, ranks);
  // Measured with all ranks of each host, whose bytes cross its link once.
  const GroupOnHosts group = on_hosts(ranks, span, ranks_of_host);
  return seconds_of(costs.*line, bytes * group.lanes, costs.ranks / ranks_of_host, group.hosts);
}

/// Time of a reduction with the codec, relative to one without it. Described links have no measured codec:
/// number formats halve the bytes, and others count as uncompressed.
double ExchangeTimes::codec_factor(const std::string& codec, double bytes, int span) const {
  if (codec == "none" || bytes == 0) return 1;
  if (measured_.links.is_described()) return codec == "bf16" || codec == "fp16" ? 0.5 : 1;
  const ExchangeCosts& costs = over(span);
  const auto cost = std::ranges::find(costs.codecs, codec, &CodecCost::codec);
  require(cost != costs.codecs.end(), "the costs have no exchange with parallel.compression = \"", codec,
          "\"; measure again with this configuration");
  const double plain_s = costs.all_reduce.of(bytes);
  return plain_s > 0 ? cost->all_reduce.of(bytes) / plain_s : 1;
}

double ExchangeTimes::reduce_s(const WeightSharing& sharing, double bytes) const {
  const int copies = sharing.copies, span = copies * sharing.tensor;
  if (copies == 1) return 0;
  const double factor = codec_factor(sharing.codec, bytes, span);
  if (!sharing.is_sharded()) return factor * exchange_s(&ExchangeCosts::all_reduce, bytes, copies, span);
  const int shards = sharing.shards;
  const bool each_time = sharing.zero >= 2 && !sharing.keeps_gradients;
  return factor * (exchange_s(&ExchangeCosts::reduce_scatter, bytes, shards, shards * sharing.tensor) *
                       (each_time ? sharing.microbatches : 1) +
                   exchange_s(&ExchangeCosts::all_reduce, bytes / shards, copies / shards, span));
}

/// Ranks that share weights in one memory gather nothing, and only wait for each other.
double ExchangeTimes::gather_s(const WeightSharing& sharing, double bytes, WeightsMemory weights) const {
  if (!sharing.is_sharded()) return 0;
  const int span = sharing.shards * sharing.tensor;
  return weights == WeightsMemory::kCommon
             ? exchange_s(&ExchangeCosts::all_reduce, 0, sharing.shards, span)
             : exchange_s(&ExchangeCosts::all_gather, bytes, sharing.shards, span);
}

}  // namespace trireme::train
