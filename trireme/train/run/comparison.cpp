#include "trireme/train/run/comparison.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::train {
namespace {

void check_names(const optim::NamedTensors& found, const optim::NamedTensors& expected) {
  require(found.size() == expected.size(), "a comparison of ", found.size(), " tensors with ",
          expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    require(found[i].first == expected[i].first, "tensor ", i, " is called ", found[i].first,
            " on one side and ", expected[i].first, " on the other");
  }
}

double largest_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.abs().max().item<double>() : 0;
}

double length_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

/// Zero over zero is 0, as there is no difference. Anything else over zero, and NaN, is infinite.
double ratio(double difference, double scale) {
  if (difference == 0) return 0;
  const double result = difference / scale;
  return std::isfinite(result) ? result : std::numeric_limits<double>::infinity();
}

at::Tensor or_zeros(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() || !like.defined() ? tensor : at::zeros_like(like);
}

}  // namespace

std::string TensorDifference::describe() const {
  if (what == "replica") return text("step ", step, ": the weights of ", tensor);
  if (what == "skipped")
    return text("step ", step, ": the ", tensor, " run alone left it out: its gradients were not finite");
  const std::string subject = tensor.empty() ? what : text(what, " of ", tensor);
  return text("step ", step, ": ", subject, " differs by ", difference, " of its size; bound ", bound);
}

void Comparison::take(const TensorDifference& difference) {
  steps_.insert(difference.step);
  if (!(difference.difference <= largest_.difference)) largest_ = difference;
  if (!first_ && !(difference.difference <= difference.bound)) first_ = difference;
}

void Comparison::loss(std::int64_t step, double found, double expected) {
  take({.step = step,
        .what = "loss",
        .tensor = {},
        .difference = ratio(std::abs(found - expected), std::abs(expected)),
        .bound = bounds_.loss});
}

void Comparison::gradients(std::int64_t step, const optim::NamedTensors& found,
                           const optim::NamedTensors& expected) {
  check_names(found, expected);
  const at::NoGradGuard no_grad;
  double of_model = 0;
  for (const auto& [name, tensor] : expected) of_model = std::max(of_model, largest_of(tensor));
  loss_of_gradient_.clear();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const at::Tensor theirs = or_zeros(expected[i].second, found[i].second);
    const at::Tensor ours = or_zeros(found[i].second, theirs);
    if (!ours.defined()) continue;
    verified_ = true;
    const double scale = std::max(largest_of(theirs), kFloor * of_model);
    loss_of_gradient_[found[i].first] =
        ratio(bounds_.gradient_loss * std::sqrt(static_cast<double>(theirs.numel())), length_of(theirs));
    take({.step = step,
          .what = "gradient",
          .tensor = found[i].first,
          .difference = ratio(largest_of(ours - theirs), scale),
          .bound = bounds_.gradient + ratio(bounds_.gradient_loss, scale)});
  }
}

void Comparison::weights(std::int64_t step, const optim::NamedTensors& before,
                         const optim::NamedTensors& found, const optim::NamedTensors& expected) {
  check_names(found, expected);
  check_names(before, expected);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double update = length_of(expected[i].second - before[i].second);
    verified_ = verified_ || update > 0;
    // A weight that moves less than its own rounding error shows no difference.
    const double rounding = 1e-6 * length_of(expected[i].second);
    const auto loss = loss_of_gradient_.find(found[i].first);
    take({.step = step,
          .what = "weight",
          .tensor = found[i].first,
          .difference = ratio(length_of(found[i].second - expected[i].second), std::max(update, rounding)),
          .bound = bounds_.weight + (loss == loss_of_gradient_.end() ? 0 : loss->second)});
  }
}

void Comparison::skipped(std::int64_t step, const optim::NamedTensors& before,
                         const optim::NamedTensors& found) {
  check_names(before, found);
  const at::NoGradGuard no_grad;
  steps_.insert(step);
  skipped_.insert(step);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].second.equal(before[i].second)) continue;
    take({.step = step,
          .what = "weight",
          .tensor = found[i].first,
          .difference = std::numeric_limits<double>::infinity(),
          .bound = 0});
  }
}

void Comparison::skipped_by_one(std::int64_t step, Side side) {
  verified_ = true;
  take({.step = step,
        .what = "skipped",
        .tensor = side == Side::kFound ? "parallel" : "serial",
        .difference = std::numeric_limits<double>::infinity(),
        .bound = 0});
}

void Comparison::replica_differs(std::int64_t step, int rank, int should_be_like, const std::string& weight) {
  take({.step = step,
        .what = "replica",
        .tensor = text("rank ", rank, " are not those of rank ", should_be_like,
                       weight.empty() ? "" : ": first ", weight),
        .difference = std::numeric_limits<double>::infinity(),
        .bound = 0});
}

}  // namespace trireme::train
