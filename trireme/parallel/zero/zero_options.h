#pragma once
// Which of the things that training holds for each parameter are sharded over the ranks with the same stage
// (ZeRO: Rajbhandari et al., arXiv 1910.02054). A value.

namespace trireme::parallel {

enum class ZeroStage {
  kNone,        ///< every rank holds all
  kOptimizer,   ///< 1: the optimizer's state; gradients are whole until a step's reduction
  kGradients,   ///< 2: and gradients: each micro-batch's are reduced and given back
  kParameters,  ///< 3: and parameters, which are gathered for use and given back
};

struct ZeroOptions {
  ZeroStage stage = ZeroStage::kNone;
  /// For optimizers that look at whole tensors (optim::needs_whole_tensors()): each is updated by one rank.
  bool whole_tensors = false;
};

}  // namespace trireme::parallel
