#pragma once
// A copy of a hook's state (CommHook::state()), for steps that are skipped because a gradient was not finite.
// Other ranks have sent their gradients by then, and have kept their residuals.
//
//   parallel::HookStateCopy before(hook);
//   for (...) {
//     before.take();
//     ... backward ...
//     if (!all_ranks_are_finite) { before.bring_back(); continue; }
//
// Costs a read and a write of the state per step, and its memory once more. Not collective; one thread.

#include <memory>
#include <vector>

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

class HookStateCopy {
 public:
  explicit HookStateCopy(std::shared_ptr<CommHook> hook) : hook_(std::move(hook)) {}

  /// Of the state as it is, between steps.
  void take();
  /// Restores the state of the last take(), in place, when no reduction is in progress. Throws
  /// InvalidArgument before the first take(), and where the hook keeps other tensors since then.
  void bring_back();

 private:
  std::vector<at::Tensor> tensors() const;

  const std::shared_ptr<CommHook> hook_;
  std::vector<at::Tensor> copies_;
  bool is_taken_ = false;
};

}  // namespace trireme::parallel
