#include "trireme/parallel/zero/internal/autograd_pass.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace trireme::parallel {

using torch::autograd::Node;

const Node* node_of(const at::Tensor& tensor) { return tensor.grad_fn().get(); }

bool is_run(const Node* node) {
  auto* const key = const_cast<Node*>(node);  // NOLINT(cppcoreguidelines-pro-type-const-cast): autograd's key
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr) return false;
  if (chosen->empty()) return torch::autograd::get_current_graph_task_nodes_in_graph()->contains(key);
  const auto found = chosen->find(key);
  return found != chosen->end() && found->second.needed_;
}

bool ends_at(const Node* node) {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  return !chosen->empty() && !is_run(node);
}

bool accumulates_into(const at::Tensor& leaf) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
  return node != nullptr && is_run(node.get());
}

bool accumulates_into_all() { return torch::autograd::get_current_graph_task_exec_info()->empty(); }

bool keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

bool makes_graph() { return at::GradMode::is_enabled(); }

}  // namespace trireme::parallel
