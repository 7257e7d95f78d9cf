#include "trireme/train/estimate/batch_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "trireme/base/available_memory.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/estimate/estimate.h"
#include "trireme/train/estimate/step_trial.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

constexpr double kWorthwhile = 1.02;

std::int64_t max_samples(const BatchSearchOptions& options, const data::DataSource& data) {
  return options.max_samples > 0 ? std::min(options.max_samples, data.train->size()) : data.train->size();
}

std::int64_t memory_limit(const ParallelPlan& plan, comm::Context& context,
                          const BatchSearchOptions& options) {
  double mine = static_cast<double>(options.memory_limit_bytes);
  if (options.memory_limit_bytes == 0) {
    require(plan.device() == c10::kCPU,
            "how much memory the device has left is not known here: give the limit");
    mine = static_cast<double>(available_memory().bytes) / context.local_world_size();
  }
  return static_cast<std::int64_t>(agreed(context, mine, comm::ReduceOp::kMin));
}

BatchTrial measured_trial(const RunConfig& config, comm::Context& context, const data::DataSource& data,
                          double trial_s) {
  const StepTrial steps = time_steps(resolve_plan(config, context.world_size()), context, data, trial_s);
  return {
      .global_batch = config.train.global_batch, .step_s = steps.step_s, .memory_bytes = steps.memory_bytes};
}

/// Pure, but for the agreement on rounding between processors of different hosts.
BatchTrial estimated_trial(const RunConfig& config, comm::Context& context, const MeasuredForms& costs) {
  const ParallelPlan plan = resolve_plan(config, context.world_size());
  const Measurements& form = form_of(costs, plan);
  const Estimate step = estimate(plan, form, weights_memory(plan, form));
  std::int64_t memory_bytes = 0;
  for (const EstimateOfRank& rank : step.ranks)
    memory_bytes = std::max({memory_bytes, rank.memory.at_peak.total(), rank.memory.first_step_bytes});
  return {.global_batch = config.train.global_batch,
          .step_s = agreed(context, step.step_s, comm::ReduceOp::kMax),
          .memory_bytes = static_cast<std::int64_t>(
              agreed(context, static_cast<double>(memory_bytes), comm::ReduceOp::kMax))};
}

/// Empty: the plan's batches can be estimated.
std::string why_not_estimated(const RunConfig& config, comm::Context& context, const MeasuredForms& costs) {
  try {
    const ParallelPlan plan = resolve_plan(config, context.world_size());
    const Measurements& form = form_of(costs, plan);
    estimate(plan, form, weights_memory(plan, form));
    return {};
  } catch (const InvalidArgument& reason) {
    return reason.what();
  }
}

void add_efficiency(BatchTrial& trial, const BatchSearch& search) {
  if (!search.noise_scale) return;
  const double noise = *search.noise_scale, base = static_cast<double>(search.configured),
               batch = static_cast<double>(trial.global_batch);
  trial.efficiency = std::isfinite(noise) ? (noise + base) / (noise + batch) : 1;
}

/// Measures in the first steps of the run. The noise scale needs two parts of a batch, so a single part is
/// split in two.
void measure_noise(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                   std::int64_t steps, BatchSearch& search) {
  RunConfig config = plan.config();
  config.train.noise_scale_every_steps = 1;
  if (plan.num_parts() == 1 && !plan.asynchronous()) config.train.accumulation = 2;
  try {
    Trainer trainer(config, context, data);
    for (std::int64_t step = 0; step < steps && !trainer.finished(); ++step) trainer.step();
    while (trainer.last_report()) {
    }
    RunResult result;
    trainer.summarize(result);
    if (result.noise && result.noise->of_sample > 0)
      search.noise_scale = result.noise->scale();
    else
      search.why_no_noise = "the run has too few steps over which it can be measured";
  } catch (const InvalidArgument& reason) {
    search.why_no_noise = reason.what();
  } catch (const DivergedError& reason) {
    search.why_no_noise = reason.what();
  }
}

/// From a quarter of the configured batch on, by doubling, in multiples of the number of parts.
std::int64_t batch_number(const ParallelPlan& plan, int doublings) {
  const std::int64_t configured = plan.config().train.global_batch, parts = plan.num_parts();
  if (doublings == 2) return configured;
  const std::int64_t batch = doublings < 2 ? configured >> (2 - doublings) : configured << (doublings - 2);
  return std::max<std::int64_t>(1, batch / parts) * parts;
}

/// Memory as a line over batch sizes, through the two largest trials. With one trial the slope is unknown,
/// and 0.
struct MemoryLine {
  explicit MemoryLine(const std::vector<BatchTrial>& trials) : last(trials.back()) {
    if (trials.size() < 2) return;
    const BatchTrial& before = trials[trials.size() - 2];
    bytes_per_sample = static_cast<double>(last.memory_bytes - before.memory_bytes) /
                       static_cast<double>(last.global_batch - before.global_batch);
  }
  double at(std::int64_t batch) const {
    return static_cast<double>(last.memory_bytes) +
           bytes_per_sample * static_cast<double>(batch - last.global_batch);
  }
  double batch_of(std::int64_t bytes) const {
    if (bytes_per_sample <= 0) return std::numeric_limits<double>::infinity();
    return static_cast<double>(last.global_batch) +
           static_cast<double>(bytes - last.memory_bytes) / bytes_per_sample;
  }

  const BatchTrial last;
  double bytes_per_sample = 0;
};

/// Whether one of the last two trials is faster than the best one before them.
bool is_worth_going_on(const std::vector<BatchTrial>& trials, std::int64_t configured) {
  if (trials.size() < 3 || trials.back().global_batch < 4 * configured) return true;
  const auto best_of = [](std::span<const BatchTrial> some) {
    return std::ranges::max_element(some, {}, &BatchTrial::samples_per_s)->samples_per_s();
  };
  const std::span<const BatchTrial> all = trials;
  return best_of(all.last(2)) >= kWorthwhile * best_of(all.first(all.size() - 2));
}

/// Throws if not even the configured batch does.
bool fits(double bytes, const RunConfig& config, const BatchSearch& search) {
  const bool does = bytes <= static_cast<double>(search.memory_limit_bytes);
  require(does || config.train.global_batch > search.configured,
          "train.global_batch = ", config.train.global_batch, " takes about ",
          human_bytes(static_cast<std::uint64_t>(bytes)), " on a rank, and it may have ",
          human_bytes(static_cast<std::uint64_t>(search.memory_limit_bytes)),
          "; take a smaller batch, or train.recompute_layers, or parallel.zero");
  return does;
}

/// Measures steps of the configured batch, by which all estimates are multiplied.
void correct_by_measurement(RunConfig config, comm::Context& context, const data::DataSource& data,
                            const BatchSearchOptions& options, BatchSearch& search) {
  config.train.global_batch = search.configured;
  const BatchTrial estimated = estimated_trial(config, context, *options.costs);
  fits(static_cast<double>(estimated.memory_bytes), config, search);
  search.checked.push_back(measured_trial(config, context, data, options.trial_s));
  add_efficiency(search.checked.back(), search);
  search.correction = search.checked.back().step_s / estimated.step_s;
}

void try_batches(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                 const BatchSearchOptions& options, BatchSearch& search) {
  const std::int64_t most = max_samples(options, data);
  RunConfig config = plan.config();
  config.train = without_ramp(config.train);
  if (options.costs != nullptr) search.why_measured = why_not_estimated(config, context, *options.costs);
  const bool estimates = options.costs != nullptr && search.why_measured.empty();
  if (estimates) correct_by_measurement(config, context, data, options, search);
  for (int doublings = 0; doublings < 62; ++doublings) {
    config.train.global_batch = batch_number(plan, doublings);
    if (config.train.global_batch > most) return;
    if (!search.trials.empty()) {
      if (config.train.global_batch <= search.trials.back().global_batch) continue;
      if (options.max_samples == 0 && !is_worth_going_on(search.trials, search.configured)) return;
      if (!fits(MemoryLine(search.trials).at(config.train.global_batch), config, search)) return;
    }
    const bool is_smaller = config.train.global_batch < search.configured;
    if (estimates && is_smaller && !why_not_estimated(config, context, *options.costs).empty()) continue;
    BatchTrial found = estimates ? estimated_trial(config, context, *options.costs)
                                 : measured_trial(config, context, data, options.trial_s);
    found.step_s *= search.correction;
    if (estimates && !fits(static_cast<double>(found.memory_bytes), config, search)) return;
    add_efficiency(found, search);
    search.trials.push_back(found);
    if (options.on_trial) options.on_trial(found);
  }
}

/// Measures the fastest batch and that of the best goodput.
void check_estimates(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                     const BatchSearchOptions& options, BatchSearch& search) {
  std::set<std::int64_t> batches = {fastest(search).global_batch};
  if (const BatchTrial* best = best_goodput(search)) batches.insert(best->global_batch);
  batches.erase(search.configured);  // measured already
  RunConfig config = plan.config();
  config.train = without_ramp(config.train);
  for (const std::int64_t batch : batches) {
    config.train.global_batch = batch;
    search.checked.push_back(measured_trial(config, context, data, options.trial_s));
    add_efficiency(search.checked.back(), search);
  }
}

}  // namespace

const BatchTrial& fastest(const BatchSearch& search) {
  require(!search.trials.empty(), "there is no trial");
  double most = 0;
  for (const BatchTrial& each : search.trials) most = std::max(most, each.samples_per_s());
  return *std::ranges::find_if(
      search.trials, [&](const BatchTrial& each) { return each.samples_per_s() * kWorthwhile >= most; });
}

const BatchTrial* best_goodput(const BatchSearch& search) {
  const auto best = std::ranges::max_element(search.trials, {}, &BatchTrial::goodput);
  return best == search.trials.end() || best->efficiency == 0 ? nullptr : &*best;
}

BatchSearch search_batches(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                           const BatchSearchOptions& options) {
  const std::int64_t most = max_samples(options, data);
  BatchSearch search{.configured = plan.config().train.global_batch,
                     .trials = {},
                     .checked = {},
                     .correction = 1,
                     .why_measured = {},
                     .memory_limit_bytes = memory_limit(plan, context, options),
                     .largest_that_fits = {},
                     .noise_scale = options.noise_scale,
                     .why_no_noise = {}};
  require(search.configured <= most, "train.global_batch = ", search.configured,
          " is more than the largest batch that is to be tried, ", most);
  if (!search.noise_scale) measure_noise(plan, context, data, options.noise_steps, search);
  try_batches(plan, context, data, options, search);
  if (options.costs != nullptr && search.why_measured.empty())
    check_estimates(plan, context, data, options, search);
  const double fits = MemoryLine(search.trials).batch_of(search.memory_limit_bytes);
  const auto parts = static_cast<double>(plan.num_parts());
  if (fits < static_cast<double>(most))
    search.largest_that_fits = static_cast<std::int64_t>(std::max(1.0, std::floor(fits / parts)) * parts);
  return search;
}

}  // namespace trireme::train
