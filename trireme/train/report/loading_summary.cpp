#include "trireme/train/report/loading_summary.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/text.h"

namespace trireme::train {
namespace {

/// Numbers that a rank sends. Counts are integers far below 2^53, so they stay exact.
enum Sent {
  kWaited,
  kStage,
  kFill,
  kWorkers,
  kBusy,
  kBytes,
  kRetries,
  kSkipped,
  kHits,
  kMisses,
  kSamples,
  kFirstStage
};
constexpr std::size_t kNumSent = kFirstStage + data::kNumStages;

double place_of(std::string_view stage) {
  for (std::size_t i = 0; i < data::kNumStages; ++i) {
    if (stage == data::name_of(static_cast<data::Stage>(i))) return static_cast<double>(i);
  }
  return -1;
}

std::string_view name_at(double place) {
  return place < 0 ? "" : data::name_of(static_cast<data::Stage>(std::lround(place)));
}

/// Two significant digits below 10 %, else whole percents.
std::string percent(double share) {
  const double digits = share < 0.0995 ? 10 : 1;
  return text(std::round(share * 100 * digits) / digits, " %");
}

}  // namespace

int LoadingSummary::slowest_rank() const {
  return static_cast<int>(std::max_element(wait_shares.begin(), wait_shares.end()) - wait_shares.begin());
}

LoadingSummary gather(comm::Context& context, const data::LoadingReport& mine, double steps_s) {
  at::Tensor numbers = at::empty({static_cast<std::int64_t>(kNumSent)}, at::kDouble);
  auto* own = numbers.data_ptr<double>();
  const data::LoadingCounts& counts = mine.counts;
  own[kWaited] = mine.waited_s / std::max(steps_s, 1e-9);
  own[kStage] = place_of(data::slowest_stage(counts));
  own[kFill] = mine.fill;
  own[kWorkers] = mine.workers;
  own[kBusy] = counts.busy_s;
  own[kBytes] = static_cast<double>(counts.bytes_read);
  own[kRetries] = static_cast<double>(counts.retries);
  own[kSkipped] = static_cast<double>(counts.skipped);
  own[kHits] = static_cast<double>(counts.cache_hits);
  own[kMisses] = static_cast<double>(counts.cache_misses);
  own[kSamples] = static_cast<double>(mine.share);
  std::copy(counts.stage_s.begin(), counts.stage_s.end(), own + kFirstStage);
  at::Tensor all = at::empty({context.world_size() * numbers.numel()}, at::kDouble);
  context.world().all_gather(all, numbers);

  LoadingSummary summary;
  std::vector<double> sums(kNumSent, 0);
  for (int rank = 0; rank < context.world_size(); ++rank) {
    const double* from = all.const_data_ptr<double>() + rank * numbers.numel();
    summary.wait_shares.push_back(from[kWaited]);
    summary.stages.push_back(name_at(from[kStage]));
    summary.samples.push_back(std::llround(from[kSamples]));
    summary.max_workers = std::max(summary.max_workers, static_cast<int>(from[kWorkers]));
    for (std::size_t i = 0; i < kNumSent; ++i) sums[i] += from[i];
  }
  summary.fill = sums[kFill] / context.world_size();
  summary.bytes_read = std::llround(sums[kBytes]);
  summary.retries = std::llround(sums[kRetries]);
  summary.skipped = std::llround(sums[kSkipped]);
  summary.cache_hits = std::llround(sums[kHits]);
  summary.cache_misses = std::llround(sums[kMisses]);
  for (std::size_t stage = 0; stage < data::kNumStages; ++stage)
    summary.stage_shares.push_back(sums[kFirstStage + stage] / std::max(sums[kBusy], 1e-9));
  return summary;
}

std::string describe(const LoadingSummary& loading) {
  const auto slowest = static_cast<std::size_t>(loading.slowest_rank());
  std::string out = text("steps waited ", percent(loading.most()), " of the time for data");
  if (loading.wait_shares.size() > 1) out += text(" on rank ", slowest, ", which waited most");
  if (!loading.stages[slowest].empty()) out += text(", slowest stage there: ", loading.stages[slowest]);
  if (loading.bytes_read > 0)
    out += text("; read ", human_bytes(static_cast<std::uint64_t>(loading.bytes_read)));
  if (const std::int64_t looked_up = loading.cache_hits + loading.cache_misses; looked_up > 0) {
    out += text(", ", percent(static_cast<double>(loading.cache_hits) / static_cast<double>(looked_up)),
                " of the reads from the cache");
  }
  if (loading.retries > 0) out += text("; ", loading.retries, " reads were repeated");
  if (loading.skipped > 0)
    out += text("; other samples stood in for ", loading.skipped, " that cannot be read");
  return out;
}

MostWaiting most_waiting(const std::vector<DataWait>& now, const std::vector<DataWait>& before,
                         double steps_s) {
  MostWaiting most;
  for (std::size_t rank = 0; rank < now.size(); ++rank) {
    const double seconds = now[rank].seconds - (rank < before.size() ? before[rank].seconds : 0);
    const double share = seconds / std::max(steps_s, 1e-9);
    if (rank == 0 || share > most.share)
      most = {.rank = static_cast<int>(rank), .share = share, .stage = now[rank].stage};
  }
  return most;
}

}  // namespace trireme::train
