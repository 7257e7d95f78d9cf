#pragma once
// The pass of autograd that runs on this thread: which nodes it runs, and into which leaves it accumulates.
// autograd::grad() accumulates into none, and backward(inputs) into some. All of it is to be called from a
// hook. Local.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace trireme::parallel {

/// The node that made the tensor; null: it is a leaf.
const torch::autograd::Node* node_of(const at::Tensor& tensor);
/// Whether the pass runs the node, which is not the one that it began with.
bool is_run(const torch::autograd::Node* node);
/// Whether the pass returns gradients of the node's outputs and goes no further there (autograd::grad).
bool ends_at(const torch::autograd::Node* node);
/// Whether the pass adds to the gradient of the leaf.
bool accumulates_into(const at::Tensor& leaf);
/// Whether the pass adds to all leaves that it comes to: backward() without inputs.
bool accumulates_into_all();
/// Whether the pass keeps its saved tensors afterwards (retain_graph).
bool keeps_graph();
/// Whether the pass makes a graph of its own (create_graph).
bool makes_graph();

}  // namespace trireme::parallel
