#include "trireme/optim/loss_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::optim {
namespace {

double& value_of(at::Tensor& tensor) { return *tensor.data_ptr<double>(); }

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options),
      scale_(at::full({}, options.initial, at::kDouble)),
      good_steps_(at::zeros({}, at::kDouble)) {
  require(options.factor > 1, "scaler.factor is ", options.factor,
          "; the scale grows and falls by a factor above 1");
  require(options.interval >= 1, "scaler.interval is ", options.interval, "; at least 1 step is needed");
  require(options.least > 0 && options.least <= options.initial && options.initial <= options.most,
          "the loss scale begins at scaler.initial = ", options.initial,
          ", which is not between scaler.least = ", options.least, " and scaler.most = ", options.most);
}

double LossScaler::scale() const { return *scale_.const_data_ptr<double>(); }

bool LossScaler::unscale(const NamedTensors& parameters) const {
  return unscale_gradients(parameters, scale());
}

void LossScaler::took_step() {
  double& good = value_of(good_steps_);
  if (++good < static_cast<double>(options_.interval)) return;
  good = 0;
  value_of(scale_) = std::min(scale() * options_.factor, options_.most);
}

void LossScaler::left_out_step(std::int64_t step) {
  if (scale() <= options_.least) {
    throw DivergedError(
        text("step ", step, ": gradients are not finite although the loss scale is at its least (",
             options_.least, "); lower optimizer.lr, clip (train.clip_norm), or train in bf16"));
  }
  value_of(scale_) = std::max(scale() / options_.factor, options_.least);
  value_of(good_steps_) = 0;
}

std::map<std::string, at::Tensor> LossScaler::state() {
  return {{"scale", scale_}, {"good_steps", good_steps_}};
}

bool unscale_gradients(const NamedTensors& parameters, double scale) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (gradients.empty()) return true;
  at::Tensor found = at::zeros({1}, gradients.front().options().dtype(at::kFloat));
  const at::Tensor inverse = at::full({1}, 1 / scale, found.options());
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
  return found.item<float>() == 0;
}

}  // namespace trireme::optim
