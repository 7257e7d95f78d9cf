#include "trireme/optim/loss_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::optim {
namespace {}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options, c10::Device device)
    : options_(options),
      scale_(at::full({}, options.initial, at::device(device).dtype(at::kDouble))),
      good_steps_(at::zeros({}, at::device(device).dtype(at::kDouble))) {
  require(options.factor > 1, "scaler.factor is ", options.factor,
          "; the scale grows and falls by a factor above 1");
  require(options.interval >= 1, "scaler.interval is ", options.interval, "; at least 1 step is needed");
  require(options.least > 0 && options.least <= options.initial && options.initial <= options.most,
          "the loss scale begins at scaler.initial = ", options.initial,
          ", which is not between scaler.least = ", options.least, " and scaler.most = ", options.most);
}

double LossScaler::scale() const { return scale_.item<double>(); }

bool LossScaler::unscale(const NamedTensors& parameters) const {
  return unscale_gradients(parameters, scale());
}

void LossScaler::took_step() { decide(at::zeros({1}, scale_.options().dtype(at::kFloat))); }

void LossScaler::require_above_least(double scale, std::int64_t step) const {
  if (scale > options_.least) return;
  throw DivergedError(
      text("step ", step, ": gradients are not finite although the loss scale is at its least (",
           options_.least, "); lower optimizer.lr, clip (train.clip_norm), or train in bf16"));
}

void LossScaler::left_out_step(std::int64_t step) {
  require_above_least(scale(), step);
  decide(at::ones({1}, scale_.options().dtype(at::kFloat)));
}

void LossScaler::decide(const at::Tensor& left_out) {
  const at::NoGradGuard no_grad;
  const at::Tensor falls = left_out.reshape({}).gt(0), good = good_steps_ + 1,
                   grows = good.ge(static_cast<double>(options_.interval)),
                   begins_anew = falls.logical_or(grows);
  const at::Tensor grown = at::where(grows, scale_ * options_.factor, scale_).clamp_max(options_.most),
                   fallen = (scale_ / options_.factor).clamp_min(options_.least);
  scale_.copy_(at::where(falls, fallen, grown));
  good_steps_.copy_(good.masked_fill(begins_anew, 0));
}

std::map<std::string, at::Tensor> LossScaler::state() {
  return {{"scale", scale_}, {"good_steps", good_steps_}};
}

bool unscale_gradients(const NamedTensors& parameters, double scale) {
  const at::Tensor found = unscale_gradients(parameters, at::scalar_tensor(scale, at::kDouble));
  return !found.defined() || found.item<float>() == 0;
}

at::Tensor unscale_gradients(const NamedTensors& parameters, const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (gradients.empty()) return {};
  at::Tensor found = at::zeros({1}, gradients.front().options().dtype(at::kFloat));
  const at::Tensor inverse = scale.reciprocal().to(found.options()).reshape({1});
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
  return found;
}

}  // namespace trireme::optim
