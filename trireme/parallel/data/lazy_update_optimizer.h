#pragma once
// An optimizer whose gradients are still being reduced when step() is called. Each parameter is updated on
// request, which is before its layer computes, or when all are requested. Every parameter gets the update
// that step() would have made at once, with the same bits. Not thread-safe.

#include <functional>
#include <memory>
#include <unordered_map>

#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

class LazyUpdateOptimizer final : public optim::Optimizer {
 public:
  /// Returns when the gradients of these are reduced.
  using Wait = std::function<void(const optim::NamedTensors&)>;
  /// `parameters` are those that `inner` updates.
  LazyUpdateOptimizer(std::unique_ptr<optim::Optimizer> inner, optim::NamedTensors parameters, Wait wait);
  /// Waits for pending reductions, unless an exception ends the run. No call is needed to end them on all
  /// ranks.
  ~LazyUpdateOptimizer() override;
  LazyUpdateOptimizer(const LazyUpdateOptimizer&) = delete;
  LazyUpdateOptimizer& operator=(const LazyUpdateOptimizer&) = delete;

  /// Without updates that are not requested yet: call finish_pending_updates() first.
  std::map<std::string, at::Tensor> state() override { return inner_->state(); }
  /// Throw the exceptions of waiting. Parameters whose gradients did not arrive may be requested again.
  void finish_pending_updates() override { finish_pending_updates(parameters_); }
  void finish_pending_updates(const optim::NamedTensors& parameters) override;
  void synchronize() override { finish_pending_updates(); }
  void pull_state() override { finish_pending_updates(); }
  /// Drops pending updates: they are no part of the restored state.
  void restored() override;

 private:
  void update(double lr) override;

  const std::unique_ptr<optim::Optimizer> inner_;
  const optim::NamedTensors parameters_;
  const Wait wait_;
  std::unordered_map<const void*, at::Tensor> gradients_;  ///< of those whose update is to come
  double lr_of_update_ = 0;
};

}  // namespace trireme::parallel
