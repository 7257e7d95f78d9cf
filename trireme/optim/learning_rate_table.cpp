#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "trireme/base/error.h"
#include "trireme/optim/learning_rate.h"

namespace trireme::optim {
namespace {

/// The shape after the warm-up: factor of the base rate at `progress` in [0, 1] of the remaining steps.
using Shape = double (*)(const LearningRateOptions&, double progress);

double constant(const LearningRateOptions&, double) { return 1; }

double cosine(const LearningRateOptions& options, double progress) {
  const double fall = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return options.final_fraction + (1 - options.final_fraction) * fall;
}

class WarmedUp : public LearningRate {
 public:
  WarmedUp(Shape shape, const LearningRateOptions& options, double base_lr, std::int64_t total_steps)
      : shape_(shape), options_(options), base_lr_(base_lr), total_steps_(total_steps) {}

  double at(std::int64_t step) const override {
    require(step >= 0, "there is no learning rate for step ", step);
    if (step < options_.warmup_steps) {
      return base_lr_ * static_cast<double>(step + 1) / static_cast<double>(options_.warmup_steps);
    }
    const std::int64_t length = std::max<std::int64_t>(total_steps_ - options_.warmup_steps, 1);
    const double progress = static_cast<double>(step - options_.warmup_steps) / static_cast<double>(length);
    return base_lr_ * shape_(options_, std::min(progress, 1.0));
  }

 private:
  Shape shape_;
  LearningRateOptions options_;
  double base_lr_;
  std::int64_t total_steps_;
};

struct ScheduleRow {
  std::string_view name;
  Shape shape;
};

constexpr std::array<ScheduleRow, 2> kScheduleTable = {{
    {"constant", constant},
    {"cosine", cosine},
}};

}  // namespace

std::unique_ptr<LearningRate> make_learning_rate(const LearningRateOptions& options, double base_lr,
                                                 std::int64_t total_steps) {
  require(base_lr >= 0 && std::isfinite(base_lr), "the learning rate must not be negative: ", base_lr);
  require(total_steps >= 0, "a run cannot have ", total_steps, " steps");
  require(options.warmup_steps >= 0 && options.warmup_steps <= total_steps, "a warm-up of ",
          options.warmup_steps, " steps does not fit into a run of ", total_steps, " steps");
  require(options.final_fraction >= 0 && options.final_fraction <= 1,
          "the final fraction of the learning rate must be in [0, 1], not ", options.final_fraction);
  for (const ScheduleRow& row : kScheduleTable) {
    if (row.name == options.schedule)
      return std::make_unique<WarmedUp>(row.shape, options, base_lr, total_steps);
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
