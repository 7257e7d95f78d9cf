#pragma once
// Statistics of data loading of a run, over all of its ranks: waiting ranks, the stage of loading that they
// wait for, and bytes read. Values.

#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/loading_report.h"
#include "trireme/train/step/step_reports.h"

namespace trireme::train {

struct LoadingSummary {
  std::vector<double> wait_shares;       ///< of each rank's time in steps
  std::vector<std::string_view> stages;  ///< of each rank: the slowest of loading; empty: unknown
  std::vector<std::int64_t> samples;     ///< of a full batch that each rank takes, at the end
  std::vector<double> stage_shares;      ///< of the time that all threads were busy, by data::Stage
  double fill = 0;                       ///< mean share of the read-ahead that was there
  int max_workers = 0;                   ///< of a rank, at the end
  std::int64_t bytes_read = 0, retries = 0, skipped = 0;  ///< of all ranks
  std::int64_t cache_hits = 0, cache_misses = 0;

  /// The rank that waited most, and its share.
  int slowest_rank() const;
  double most() const {
    return wait_shares.empty() ? 0 : wait_shares[static_cast<std::size_t>(slowest_rank())];
  }
};

/// Of all ranks, on each. Collective.
LoadingSummary gather(comm::Context& context, const data::LoadingReport& mine, double steps_s);

/// "steps waited 12 % of the time for data, most on rank 1 (34 %), where reading takes longest; ..."
std::string describe(const LoadingSummary& loading);

/// Which rank has waited most in a span of `steps_s`, between two reports.
struct MostWaiting {
  int rank = 0;
  double share = 0;
  std::string_view stage = {};
};
/// From the waiting times of all ranks at the two reports, in the order of ranks. Share 0 where no rank
/// waited.
MostWaiting most_waiting(const std::vector<DataWait>& now, const std::vector<DataWait>& before,
                         double steps_s);

}  // namespace trireme::train
