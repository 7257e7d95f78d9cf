#pragma once
// Activation checkpointing (Chen et al., arXiv 1604.06174): a forward that keeps only its inputs for its
// backward. It runs again when the backward needs the first tensor that it did not keep. The graph is the one
// that autograd recorded: gradients come in the same order, through the same hooks, with the same bits. All
// code that reads a graph (unused parameters, split backwards, tied weights, gradients of gradients) sees the
// graph of a plain forward.
//
// The second run starts with the random generators, autocast and same_again() of the first one
// (forward_record.h). It restores them and the buffers of the layer. It ends with the last tensor that the
// backward needs. Checkpointed forwards nest. A forward must do the same both times: it may depend on inputs,
// parameters and random numbers, and must not change its inputs in place. Under NoGradGuard it is a plain
// forward. One backward of a graph at a time.
//
// A graph that is kept (retain_graph) keeps the tensors of the second run from its first backward on: a
// second backward runs nothing again. The backward throws an exception of the second run, and its tensors are
// freed: the same backward can be run again.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::model {

struct CheckpointOptions {
  std::string name = "a checkpointed function";  ///< for messages
  /// Effects of its forward besides its outputs: these modules' buffers (running statistics) count the
  /// forward once.
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};
};

/// forward(inputs), checkpointed: `y = checkpointed([=](const at::Tensor& x) { return block->forward(x); },
/// x)`. Its captures live until the backward. Throws InvalidArgument: it changed an input in place; from the
/// backward, with the name: the second run saves other tensors than the first, or an input, a parameter or a
/// saved tensor was changed in place in between.
Fields checkpointed(const std::function<Fields(const Fields&)>& forward, const Fields& inputs,
                    const CheckpointOptions& options = {});

/// The same layer, checkpointed.
Layer checkpointed(Layer layer);

/// Whether this thread leaves a second run that has all it needs: by an exception that is no failure, and no
/// std::exception. For guards that take any for one.
bool is_leaving_second_run();

}  // namespace trireme::model
