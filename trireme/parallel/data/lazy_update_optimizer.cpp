#include "trireme/parallel/data/lazy_update_optimizer.h"

#include <exception>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::parallel {

LazyUpdateOptimizer::LazyUpdateOptimizer(std::unique_ptr<optim::Optimizer> inner,
                                         optim::NamedTensors parameters, Wait wait)
    : Optimizer(inner->lr()),
      inner_(std::move(inner)),
      parameters_(std::move(parameters)),
      wait_(std::move(wait)) {}

LazyUpdateOptimizer::~LazyUpdateOptimizer() {
  if (gradients_.empty() || std::uncaught_exceptions() > 0) return;
  try {
    wait_(parameters_);
  } catch (const std::exception&) {
    // The group has failed: its cause is known.
  }
}

/// Gradients are moved aside, because the optimizer skips a parameter without a gradient.
void LazyUpdateOptimizer::update(double lr) {
  if (!gradients_.empty())
    throw InternalError("a step ends before all updates of the one before were asked for");
  lr_of_update_ = lr;
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.grad().defined()) continue;
    gradients_.emplace(parameter.unsafeGetTensorImpl(), std::exchange(parameter.mutable_grad(), {}));
  }
}

void LazyUpdateOptimizer::finish_pending_updates(const optim::NamedTensors& parameters) {
  if (gradients_.empty()) return;
  optim::NamedTensors asked;
  for (const auto& each : parameters) {
    if (gradients_.contains(each.second.unsafeGetTensorImpl())) asked.push_back(each);
  }
  if (asked.empty()) return;
  wait_(asked);
  for (const auto& [name, parameter] : asked) {
    // A tied parameter may occur twice.
    if (auto gradient = gradients_.extract(parameter.unsafeGetTensorImpl()))
      parameter.mutable_grad() = std::move(gradient.mapped());
  }
  inner_->set_lr(lr_of_update_);
  inner_->step();
  for (const auto& [name, parameter] : asked) parameter.mutable_grad().reset();
}

void LazyUpdateOptimizer::restored() {
  if (!gradients_.empty()) wait_(parameters_);
  gradients_.clear();
  inner_->restored();
}

}  // namespace trireme::parallel
