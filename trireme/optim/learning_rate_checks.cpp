#include "trireme/optim/internal/learning_rate_checks.h"

#include <cmath>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

void require_option(bool holds, const char* option, const char* range, double value) {
  require(holds, "lr.", option, " must be ", range, ", not ", value);
}

void require_share(const char* option, double value) {
  require_option(value >= 0 && value <= 1, option, "in [0, 1]", value);
}

void require_count(const char* option, std::int64_t value) {
  require_option(value >= 0, option, "at least 0", static_cast<double>(value));
}

void require_period(const LearningRateOptions& options) {
  require(options.period_steps >= 1, "the schedule ", options.schedule,
          " needs lr.period_steps of at least 1, the steps between two falls of the rate, not ",
          options.period_steps);
}

}  // namespace

void check_ranges(const LearningRateOptions& options, double base_lr, std::int64_t total_steps) {
  require(base_lr >= 0 && std::isfinite(base_lr), "the learning rate must not be negative: ", base_lr);
  require(total_steps >= 0, "a run cannot have ", total_steps, " steps");
  require(options.warmup_steps >= 0 && options.warmup_steps <= total_steps, "a warm-up of ",
          options.warmup_steps, " steps does not fit into a run of ", total_steps,
          " steps; shorten lr.warmup_steps or train longer");
  require_share("initial_fraction", options.initial_fraction);
  require_share("final_fraction", options.final_fraction);
  require_option(options.factor > 0 && options.factor < 1, "factor", "in (0, 1)", options.factor);
  require_option(options.power > 0 && std::isfinite(options.power), "power", "a number above 0",
                 options.power);
  require_option(options.threshold >= 0 && options.threshold < 1, "threshold", "in [0, 1)",
                 options.threshold);
  require_count("period_steps", options.period_steps);
  require_count("decay_steps", options.decay_steps);
  require_count("patience", options.patience);
  require_count("cooldown", options.cooldown);
}

void check_step(const LearningRateOptions& options, std::int64_t total_steps) {
  require_period(options);
  const std::int64_t left = total_steps - options.warmup_steps;
  require(options.period_steps < left || left == 0,
          "the schedule step would never fall: lr.period_steps = ", options.period_steps,
          ", and the run has ", left,
          " steps after the warm-up; shorten the period, train longer, or take the schedule constant");
}

void check_exponential(const LearningRateOptions& options, std::int64_t /*total_steps*/) {
  require_period(options);
}

void check_multi_step(const LearningRateOptions& options, std::int64_t total_steps) {
  require(!options.milestones.empty(),
          "the schedule multi_step needs lr.milestones, the steps at which the rate falls; found none");
  std::int64_t before = options.warmup_steps;
  for (const std::int64_t milestone : options.milestones) {
    require(milestone > before, "milestone ", milestone, " of the schedule multi_step must be above ", before,
            ", the one before it or the end of the warm-up; list milestones in rising order");
    require(milestone < total_steps, "milestone ", milestone,
            " of the schedule multi_step does not come before the end of the run of ", total_steps,
            " steps; remove it or train longer");
    before = milestone;
  }
}

void check_wsd(const LearningRateOptions& options, std::int64_t total_steps) {
  require(options.decay_steps >= 1,
          "the schedule wsd needs lr.decay_steps of at least 1, the last steps of the "
          "run in which the rate falls, not ",
          options.decay_steps);
  require(options.decay_steps <= total_steps - options.warmup_steps,
          "the schedule wsd is longer than the run: ", options.warmup_steps, " steps of warm-up and ",
          options.decay_steps, " of decay in ", total_steps, " steps; shorten one of them or train longer");
}

}  // namespace trireme::optim
