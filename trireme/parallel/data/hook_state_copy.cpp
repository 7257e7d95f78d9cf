#include "trireme/parallel/data/hook_state_copy.h"

#include <ATen/core/grad_mode.h>

#include "trireme/base/error.h"
#include "trireme/parallel/counted_memory.h"

namespace trireme::parallel {

std::vector<at::Tensor> HookStateCopy::tensors() const {
  const HookState state = hook_->state();
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : state.own) all.push_back(tensor);
  for (const auto& [name, tensor] : state.common) all.push_back(tensor);
  for (const HookState::Piece& piece : state.pieces) all.push_back(piece.tensor);
  return all;
}

void HookStateCopy::take() {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> now = tensors();
  if (copies_.size() != now.size()) {  // first copy, or parameters were added
    copies_.clear();
    for (const at::Tensor& tensor : now) {
      copies_.push_back(tensor.clone());
      count_as(MemoryKind::kOptimizer, copies_.back());
    }
  } else {
    for (std::size_t i = 0; i < now.size(); ++i) copies_[i].copy_(now[i]);
  }
  is_taken_ = true;
}

void HookStateCopy::bring_back() {
  require(is_taken_, "HookStateCopy::bring_back() needs an earlier take()");
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> now = tensors();
  require(now.size() == copies_.size(), "HookStateCopy::bring_back(): the hook keeps ", now.size(),
          " tensors, and kept ", copies_.size(), " at the last take(): take a copy after parameters change");
  for (std::size_t i = 0; i < copies_.size(); ++i) at::Tensor(now[i]).copy_(copies_[i]);
}

}  // namespace trireme::parallel
