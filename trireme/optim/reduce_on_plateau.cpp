#include "trireme/optim/reduce_on_plateau.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>

namespace trireme::optim {
namespace {

at::Tensor number(double value) { return at::full({}, value, at::TensorOptions(at::kDouble)); }

}  // namespace

ReduceOnPlateau::ReduceOnPlateau(std::unique_ptr<LearningRate> shaped, const LearningRateOptions& options)
    : shaped_(std::move(shaped)),
      options_(options),
      best_(number(std::numeric_limits<double>::infinity())),
      bad_(number(0)),
      cooldown_left_(number(0)),
      factor_(number(1)) {}

double ReduceOnPlateau::at(std::int64_t step) const { return shaped_->at(step) * factor_.item<double>(); }

void ReduceOnPlateau::observe(double metric) {
  const at::NoGradGuard no_grad;
  if (metric < best_.item<double>() * (1 - options_.threshold)) {
    best_.fill_(metric);
    bad_.zero_();
  } else {
    bad_.add_(1);
  }
  if (cooldown_left_.item<double>() > 0) {
    cooldown_left_.sub_(1);
    bad_.zero_();
  }
  if (bad_.item<double>() <= static_cast<double>(options_.patience)) return;
  factor_.fill_(std::max(factor_.item<double>() * options_.factor, options_.final_fraction));
  cooldown_left_.fill_(static_cast<double>(options_.cooldown));
  bad_.zero_();
}

std::map<std::string, at::Tensor> ReduceOnPlateau::state() {
  return {{"best", best_}, {"bad", bad_}, {"cooldown_left", cooldown_left_}, {"factor", factor_}};
}

}  // namespace trireme::optim
