#pragma once
// Which of the things that training holds for each parameter are sharded over the ranks with the same stage
// (ZeRO: Rajbhandari et al., arXiv 1910.02054). A value.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

namespace trireme::parallel {

/// The sharded state. Each stage shards more than the one before, with the numbers of the paper.
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
  /// Type for computation with the f32 weights of linear layers and convolutions: ranks gather a rounded
  /// copy. Updates, saves and loads use the f32 shards. For layers that run under autocast to that type,
  /// which would round those weights at every use: the same bits. None: the model's type.
  std::optional<c10::ScalarType> working_type = {};
  /// kParameters: parameters with fewer elements stay gathered between uses; their gradients and optimizer
  /// state are sharded nevertheless.
  std::int64_t persistent_below = 0;
  /// kParameters: stages of a rank whose weights are gathered at a time: the computing one and prefetched
  /// ones. 0: all, each gathered once in a step and kept until its last use.
  int gathered_stages = 2;
  /// kGradients, kParameters: gradients of a step's micro-batches add up whole on each rank and are reduced
  /// once, with the last: one reduction instead of one per micro-batch, for the memory of all gradients.
  bool keep_gradients = false;

  bool keeps_gradients() const { return stage == ZeroStage::kOptimizer || keep_gradients; }
};

}  // namespace trireme::parallel
