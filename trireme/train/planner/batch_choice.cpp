#include "trireme/train/planner/batch_choice.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::train {
namespace {

/// Times that differ by less are equal.
constexpr double kAsFastSample = 0.01;
/// Of the configuration's batch: up to there speed does not end the search.
constexpr std::int64_t kTimesAnyway = 4;
constexpr int kDoublingsWithoutGain = 2;
/// Other batches than the configuration's have this part of the limit of work.
constexpr std::int64_t kPartsOfLimit = 8;
constexpr std::int64_t kLargestBatch = std::int64_t{1} << 24;

double sample_s(const BatchChoice& choice) {
  return choice.plan.step_s / static_cast<double>(choice.global_batch);
}

/// Powers of two times the ranks, and the configured one.
std::set<std::int64_t> batch_sizes(std::int64_t configured, int world_size) {
  std::set<std::int64_t> sizes = {configured};
  for (std::int64_t size = world_size; size <= kLargestBatch; size *= 2) sizes.insert(size);
  return sizes;
}

}  // namespace

const BatchChoice& BatchChoices::fastest() const {
  require(!batches.empty(), "no plan fits for any batch");
  const double least_s = sample_s(*std::ranges::min_element(batches, {}, sample_s));
  return *std::ranges::find_if(
      batches, [&](const BatchChoice& each) { return sample_s(each) <= least_s * (1 + kAsFastSample); });
}

BatchChoices search_batch_sizes(const RunConfig& config, int world_size, const MeasuredForms& measured,
                                const PlanSearchOptions& options) {
  require(config.train.batch_ramp_sizes.empty(),
          "train.batch_ramp_sizes sets the batch of each step; leave it out to search for a batch");
  BatchChoices found;
  double least_s = std::numeric_limits<double>::infinity();
  int without_gain = 0;
  for (const std::int64_t size : batch_sizes(config.train.global_batch, world_size)) {
    RunConfig changed = config;
    changed.train.global_batch = size;
    PlanSearchOptions of_size = options;
    if (options.max_work > 0 && size != config.train.global_batch)
      of_size.max_work = std::max<std::int64_t>(1, options.max_work / kPartsOfLimit);
    PlanSearch search;
    try {
      search = search_plans(changed, world_size, measured, of_size);
    } catch (const InvalidArgument&) {  // such as fewer samples than micro-batches
      if (size < config.train.global_batch) continue;
      if (found.batches.empty()) throw;
      break;
    }
    found.is_complete = found.is_complete && search.is_complete;
    if (search.plans.empty()) {
      found.first_too_large = size;
      found.without_fit = std::move(search);
      break;
    }
    found.batches.push_back({.global_batch = size, .plan = std::move(search.plans.front())});
    const double this_s = sample_s(found.batches.back());
    without_gain = this_s < least_s * (1 - kAsFastSample) ? 0 : without_gain + 1;
    least_s = std::min(least_s, this_s);
    const bool has_to_go_on = size < kTimesAnyway * config.train.global_batch;
    if (without_gain >= kDoublingsWithoutGain && !has_to_go_on) break;
    if (options.is_over && options.is_over()) {
      found.is_complete = false;
      break;
    }
  }
  return found;
}

}  // namespace trireme::train
