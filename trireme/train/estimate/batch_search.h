#pragma once
// Cost and benefit of larger and smaller global batches for a plan: step time, memory of a rank, and goodput.
// Time and memory are estimates (estimate.h), or are measured where there is no estimate of the plan. Goodput
// is the samples per second times the statistical efficiency (Qiao et al., Pollux, OSDI 2021, section 3.1).
// Let n be the noise scale of the gradients. The efficiency of a sample in a batch of m is (n + b) / (n + m)
// times that in one of b. This is equation 2.12 of McCandlish et al., arXiv 1812.06162.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/estimate/measurements.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// Steps with one batch size, estimated or measured.
struct BatchTrial {
  std::int64_t global_batch = 0;
  double step_s = 0;              ///< measured: the median, of the slowest rank
  std::int64_t memory_bytes = 0;  ///< of tensors at the peak, of the rank that has most
  double efficiency = 0;          ///< of a sample, next to one of the configuration's batch; 0: not known
  double samples_per_s() const { return static_cast<double>(global_batch) / step_s; }
  double goodput() const { return efficiency * samples_per_s(); }
};

/// Bounds of a search.
struct BatchSearchOptions {
  /// Of a batch. 0: no more than the training data, and no further than speed grows: beyond four times the
  /// configuration's batch, one of two doublings has to bring 2 % more.
  std::int64_t max_samples = 0;
  /// Costs of the configuration's model (measure_forms.h). Null: steps with each batch are measured.
  const MeasuredForms* costs = nullptr;
  /// Memory for a rank's tensors; 0: the available memory of its host, shared by its ranks.
  std::int64_t memory_limit_bytes = 0;
  double trial_s = 1;                      ///< of steps that are timed, three at least and a hundred at most
  std::optional<double> noise_scale = {};  ///< in samples; none: measured over the first steps of the run
  std::int64_t noise_steps = 30;           ///< steps over which it is measured
  /// Told of each trial when it is over, on every rank.
  std::function<void(const BatchTrial&)> on_trial = nullptr;
};

/// Result of a search.
struct BatchSearch {
  std::int64_t configured = 0;     ///< global batch of the configuration
  std::vector<BatchTrial> trials;  ///< in the order of their batches, each about twice the one before
  /// With estimated trials: measured steps with the configured batch, the fastest one and the one of the best
  /// goodput, once each.
  std::vector<BatchTrial> checked;
  double correction = 1;     ///< of all estimated times: measured over estimated with the configured batch
  std::string why_measured;  ///< the reason why trials are measured although costs were given
  std::int64_t memory_limit_bytes = 0;
  /// The largest that fits into the limit, by a line through the two largest trials; none where memory does
  /// not grow, or more of it fits than there are samples, or may be in a batch.
  std::optional<std::int64_t> largest_that_fits;
  std::optional<double> noise_scale = {};  ///< in samples; infinite: the gradient is lost in its noise
  std::string why_no_noise;                ///< where there is none
};

/// The smallest batch within two hundredths of the most samples per second.
const BatchTrial& fastest(const BatchSearch& search);
/// Null where efficiencies are not known.
const BatchTrial* best_goodput(const BatchSearch& search);

/// Batches begin at a quarter of the configuration's, and end at memory, data or `max_samples`. They are
/// multiples of the parts that the plan cuts one into. Measured steps begin at the start of the run and train
/// at a rate that changes nothing. Nothing is written. Collective. Cost: measured steps for `trial_s` with
/// each batch, with `costs` only with those of `checked`. Throws InvalidArgument: the configuration's own
/// batch does not fit; CommError, DataError.
BatchSearch search_batches(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                           const BatchSearchOptions& options = {});

}  // namespace trireme::train
