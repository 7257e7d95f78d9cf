#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "trireme/base/error.h"
#include "trireme/optim/internal/learning_rate_checks.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/optim/reduce_on_plateau.h"

namespace trireme::optim {
namespace {

using Options = LearningRateOptions;

/// A step within the warm-up or the phase after it.
struct PhaseStep {
  std::int64_t step = 0;    ///< from 0
  std::int64_t length = 0;  ///< of the phase

  /// The fraction of the phase after `steps` steps.
  double part(std::int64_t steps) const {
    return std::min(static_cast<double>(steps) / static_cast<double>(std::max<std::int64_t>(length, 1)), 1.0);
  }
};

/// Factor of the base rate at a step of a phase.
using Shape = double (*)(const Options&, PhaseStep);

double between(double from, double to, double part) { return from + (to - from) * part; }
/// Half a cosine from 0 to 1.
double cosine_part(double part) { return 0.5 * (1 - std::cos(std::numbers::pi * part)); }

double rise_linearly(const Options&, PhaseStep at) { return at.part(at.step + 1); }

double rise_along_cosine(const Options& options, PhaseStep at) {
  const PhaseStep up_to_last{.step = at.step, .length = at.length - 1};
  const double part = at.length > 1 ? up_to_last.part(at.step) : 1;
  return between(options.initial_fraction, 1, cosine_part(part));
}

double constant(const Options&, PhaseStep) { return 1; }

double step(const Options& options, PhaseStep at) {
  const std::int64_t num_falls = at.step / options.period_steps;
  return std::pow(options.factor, static_cast<double>(num_falls));
}

double multi_step(const Options& options, PhaseStep at) {
  const auto& milestones = options.milestones;
  const auto ahead = std::upper_bound(milestones.begin(), milestones.end(), options.warmup_steps + at.step);
  return std::pow(options.factor, static_cast<double>(ahead - milestones.begin()));
}

double exponential(const Options& options, PhaseStep at) {
  return std::pow(options.factor, static_cast<double>(at.step) / static_cast<double>(options.period_steps));
}

double polynomial(const Options& options, PhaseStep at) {
  return between(options.final_fraction, 1, std::pow(1 - at.part(at.step), options.power));
}

double cosine(const Options& options, PhaseStep at) {
  return between(1, options.final_fraction, cosine_part(at.part(at.step)));
}

double inverse_sqrt(const Options& options, PhaseStep at) {
  const auto unit = static_cast<double>(std::max<std::int64_t>(options.warmup_steps, 1));
  return std::sqrt(unit / static_cast<double>(options.warmup_steps + at.step + 1));
}

double stable_then_decay(const Options& options, PhaseStep at) {
  const PhaseStep decay{.step = at.step - (at.length - options.decay_steps), .length = options.decay_steps};
  return decay.step <= 0 ? 1 : between(1, options.final_fraction, decay.part(decay.step));
}

/// As PyTorch counts: the last step of the run has the final rate.
double fall_along_cosine(const Options& options, PhaseStep at) {
  return between(1, options.final_fraction, cosine_part(at.part(at.step + 1)));
}

class ShapedRate : public LearningRate {
 public:
  ShapedRate(Shape warm_up, Shape after, const Options& options, double base_lr, std::int64_t total_steps)
      : warm_up_(warm_up), after_(after), options_(options), base_lr_(base_lr), total_steps_(total_steps) {}

  double at(std::int64_t step) const override {
    require(step >= 0, "there is no learning rate for step ", step);
    const std::int64_t warmup = options_.warmup_steps;
    if (step < warmup) return base_lr_ * warm_up_(options_, {.step = step, .length = warmup});
    return base_lr_ * after_(options_, {.step = step - warmup, .length = total_steps_ - warmup});
  }
  void observe(double) override {}
  std::map<std::string, at::Tensor> state() override { return {}; }

 private:
  Shape warm_up_, after_;
  Options options_;
  double base_lr_;
  std::int64_t total_steps_;
};

using Rate = std::unique_ptr<LearningRate>;
Rate pure(Rate shaped, const Options&) { return shaped; }
Rate on_plateau(Rate shaped, const Options& options) {
  return std::make_unique<ReduceOnPlateau>(std::move(shaped), options);
}

struct ScheduleRow {
  std::string_view name;
  Shape warm_up, after;
  void (*check)(const Options&, std::int64_t total_steps);
  Rate (*finish)(Rate shaped, const Options&);
};

constexpr std::array<ScheduleRow, 10> kScheduleTable = {{
    {"constant", rise_linearly, constant, fits_always, pure},
    {"step", rise_linearly, step, check_step, pure},
    {"multi_step", rise_linearly, multi_step, check_multi_step, pure},
    {"exponential", rise_linearly, exponential, check_exponential, pure},
    {"polynomial", rise_linearly, polynomial, fits_always, pure},
    {"cosine", rise_linearly, cosine, fits_always, pure},  // Loshchilov and Hutter, arXiv 1608.03983
    {"inverse_sqrt", rise_linearly, inverse_sqrt, fits_always, pure},  // Vaswani et al., arXiv 1706.03762
    {"wsd", rise_linearly, stable_then_decay, check_wsd, pure},        // Hu et al., arXiv 2404.06395
    {"one_cycle", rise_along_cosine, fall_along_cosine, fits_always, pure},  // Smith, arXiv 1708.07120
    {"reduce_on_plateau", rise_linearly, constant, fits_always, on_plateau},
}};

}  // namespace

std::unique_ptr<LearningRate> make_learning_rate(const LearningRateOptions& options, double base_lr,
                                                 std::int64_t total_steps) {
  check_ranges(options, base_lr, total_steps);
  for (const ScheduleRow& row : kScheduleTable) {
    if (row.name != options.schedule) continue;
    row.check(options, total_steps);
    return row.finish(std::make_unique<ShapedRate>(row.warm_up, row.after, options, base_lr, total_steps),
                      options);
  }
  throw InvalidArgument(text("unknown learning-rate schedule '", options.schedule, "'",
                             suggest(options.schedule, learning_rate_names())));
}

std::vector<std::string> learning_rate_names() {
  std::vector<std::string> names;
  for (const ScheduleRow& row : kScheduleTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::optim
