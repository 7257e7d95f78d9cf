#pragma once
// Weights of a stage that no other rank has, and that other code updates: it is notified of each gradient as
// soon as it is complete, while the backward continues. One thread.

#include <functional>
#include <vector>

#include "trireme/parallel/pipeline/internal/stage_weights.h"

namespace trireme::parallel {

class WatchedWeights final : public StageWeights {
 public:
  /// Throws InvalidArgument: a parameter that has a hook on its gradient.
  WatchedWeights(optim::NamedTensors parameters, const StageWeightsOptions& options);
  ~WatchedWeights() override;

  void begin(const schedule::Program& program, int rank) override;
  void before(const schedule::Action& action) override;
  void after(const schedule::Action& /*action*/) override { is_last_ = false; }
  void aborted() override { is_last_ = false; }

 private:
  const int stage_;
  const std::function<void(const at::Tensor&)> tell_;
  std::vector<at::Tensor> watched_;
  int num_left_ = 0;      ///< actions that make weight gradients, still to come
  bool is_last_ = false;  ///< of those the last is under way
};

}  // namespace trireme::parallel
