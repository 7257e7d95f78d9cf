#include <array>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/optim/learning_rate.h"

namespace trireme::optim {
namespace {

struct ScalingRow {
  std::string_view name;
  double exponent;  ///< of (global batch / reference batch)
};

constexpr std::array<ScalingRow, 3> kScalingTable = {{{"none", 0}, {"linear", 1}, {"sqrt", 0.5}}};

}  // namespace

double scaled_lr(const LearningRateOptions& options, double lr, std::int64_t global_batch) {
  for (const ScalingRow& row : kScalingTable) {
    if (row.name != options.scale_with_batch) continue;
    if (row.exponent == 0) return lr;
    require(options.reference_batch >= 1, "scale_with_batch = ", row.name,
            " needs a reference_batch of at least 1, the samples per step for which the learning rate was "
            "chosen, not ",
            options.reference_batch);
    require(global_batch >= 1, "a step must have at least 1 sample, not ", global_batch);
    const double ratio = static_cast<double>(global_batch) / static_cast<double>(options.reference_batch);
    return lr * std::pow(ratio, row.exponent);
  }
  throw InvalidArgument(text("unknown scale_with_batch '", options.scale_with_batch, "'",
                             suggest(options.scale_with_batch, batch_scaling_names())));
}

std::vector<std::string> batch_scaling_names() {
  std::vector<std::string> names;
  for (const ScalingRow& row : kScalingTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::optim
