#include "trireme/parallel/pipeline/internal/watched_weights.h"

#include <set>

#include "trireme/parallel/data/gradient_hook.h"

namespace trireme::parallel {

WatchedWeights::WatchedWeights(optim::NamedTensors parameters, const StageWeightsOptions& options)
    : StageWeights(std::move(parameters)), stage_(options.stage), tell_(options.gradient_is_final) {
  std::set<const void*> seen;
  for (const auto& [name, leaf] : leaves_) {
    const bool is_new = seen.insert(leaf.unsafeGetTensorImpl()).second;  // tied parameters have several names
    if (!leaf.requires_grad() || !is_new || options.common.contains(name)) continue;
    hook_gradient(leaf, name, [this, i = watched_.size()] {
      if (is_last_) tell_(watched_[i]);
    });
    watched_.push_back(leaf);
  }
}

WatchedWeights::~WatchedWeights() {
  for (const at::Tensor& leaf : watched_) unhook_gradient(leaf);
}

void WatchedWeights::begin(const schedule::Program& program, int rank) {
  is_last_ = false;
  num_left_ = num_weight_gradients(program, rank, stage_);
}

void WatchedWeights::before(const schedule::Action& action) {
  if (schedule::makes_weight_gradient(action.kind)) is_last_ = --num_left_ == 0;
}

}  // namespace trireme::parallel
