#pragma once
// An optimizer whose gradients are still being reduced when step() is called: each parameter is updated when
// somebody asks for it, which is before its layer computes, or when all are asked for. Every parameter gets
// the update that it would have got at once, with the same bits. Not thread-safe.

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
  /// Waits for what is on its way, unless an exception ends the run: nobody has to give it up for all ranks.
  ~LazyUpdateOptimizer() override;
  LazyUpdateOptimizer(const LazyUpdateOptimizer&) = delete;
  LazyUpdateOptimizer& operator=(const LazyUpdateOptimizer&) = delete;

  /// Without what has not been asked for: finish_pending_updates() first.
  std::map<std::string, at::Tensor> state() override { return inner_->state(); }
  /// Throw what waiting throws; what has not come then may be asked for again.
  void finish_pending_updates() override { finish_pending_updates(parameters_); }
  void finish_pending_updates(const optim::NamedTensors& parameters) override;
  void synchronize() override { finish_pending_updates(); }
  void pull_state() override { finish_pending_updates(); }
  /// Updates that nobody has asked for are none of what was restored, and dropped.
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
