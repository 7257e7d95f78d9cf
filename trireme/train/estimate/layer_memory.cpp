#include "trireme/train/estimate/layer_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <functional>
#include <list>
#include <optional>
#include <utility>

#include "trireme/model/deferred.h"
#include "trireme/model/untouched.h"
#include "trireme/parallel/allocated_bytes.h"
#include "trireme/parallel/data/gradient_hook.h"
#include "trireme/parallel/pipeline/split_backward.h"
#include "trireme/train/plan/internal/chain_link.h"

namespace trireme::train {
namespace {

/// Removes the gradient of a parameter for its lifetime, and reports the next one. Throws InvalidArgument,
/// and changes nothing, if the parameter already has such a hook.
class WithoutGradient {
 public:
  WithoutGradient(const std::string& name, at::Tensor parameter, std::function<void()> on_gradient)
      : parameter_(std::move(parameter)) {
    parallel::hook_gradient(parameter_, name, std::move(on_gradient));
    std::swap(before_, parameter_.mutable_grad());
  }
  ~WithoutGradient() {
    parallel::unhook_gradient(parameter_);
    parameter_.mutable_grad() = before_;
  }
  WithoutGradient(const WithoutGradient&) = delete;
  WithoutGradient& operator=(const WithoutGradient&) = delete;

 private:
  at::Tensor parameter_, before_;
};

/// Bytes in a backward without the gradients of parameters, which are subtracted as they arise.
class BackwardBytes {
 public:
  BackwardBytes(const model::Layer& layer, parallel::AllocatedBytes& allocated)
      : allocated_(allocated), begin_(allocated.current()) {
    allocated_.reset_peak();
    for (const auto& [name, parameter] : layer.parameters) {
      if (parameter.requires_grad())
        parameters_.emplace_back(name, parameter, [this, tensor = parameter] { note_gradient(tensor); });
    }
  }

  /// The peak so far, in addition to the bytes at the beginning.
  double most() {
    note(0);
    return static_cast<double>(most_);
  }
  double gradients() const { return static_cast<double>(gradients_); }
  double largest_gradient() const { return static_cast<double>(largest_); }

 private:
  /// Updates the peak since the last call, in which a gradient of so many bytes was made.
  void note(std::int64_t gradient) {
    const std::int64_t now = allocated_.current() - gradient, peak = allocated_.peak() - gradient;
    most_ = std::max({most_, now - begin_ - gradients_, peak - begin_ - gradients_});
    gradients_ += gradient;
    largest_ = std::max(largest_, gradient);
    allocated_.reset_peak();
  }
  void note_gradient(const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    note(gradient.defined() ? static_cast<std::int64_t>(gradient.nbytes()) : 0);
  }

  parallel::AllocatedBytes& allocated_;
  const std::int64_t begin_;
  std::list<WithoutGradient> parameters_;
  std::int64_t gradients_ = 0, largest_ = 0, most_ = 0;
};

/// The roots of the graph of a layer's outputs, and the forms of their gradients.
struct Roots {
  torch::autograd::edge_list edges;
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<at::TensorOptions> options;
};

Roots roots_of(const Fields& outputs) {
  Roots roots;
  for (const auto& [name, output] : outputs) {
    if (!output.requires_grad()) continue;
    roots.edges.push_back(torch::autograd::impl::gradient_edge(output));
    roots.sizes.push_back(output.sizes().vec());
    roots.options.push_back(output.options().requires_grad(false));
  }
  return roots;
}

void run_backward(const Roots& roots) {
  torch::autograd::variable_list gradients;
  for (std::size_t i = 0; i < roots.sizes.size(); ++i)
    gradients.push_back(at::ones(roots.sizes[i], roots.options[i]));
  torch::autograd::Engine::get_default_engine().execute(roots.edges, gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

/// Drops outputs and inputs one after the other, to find which of them the graph saves. Then runs the
/// backward.
plan::LayerMemory memory_of(const ChainLink& link, const Fields& inputs) {
  const Fields leaves = leaves_for(link, inputs);
  parallel::AllocatedBytes allocated(device_of(inputs).type());
  // Each value follows an operator, as in the chain: a graph that begins at a leaf would hold the leaf.
  Fields values = leaves.map([](const at::Tensor& leaf) { return leaf.clone(); });
  allocated.reset_peak();
  const auto before = static_cast<double>(allocated.current());
  Fields outputs = model::run_layer(link.layer, values, link.carried, link.carried_on);
  plan::LayerMemory memory{.forward_bytes = static_cast<double>(allocated.peak()) - before};
  const Roots roots = roots_of(outputs);
  const double input_bytes = bytes_of(values), output_bytes = bytes_of(outputs);
  const auto drop = [&](Fields& tensors) {
    const auto with = static_cast<double>(allocated.current());
    tensors = {};
    return with - static_cast<double>(allocated.current());
  };
  const bool saves_output = drop(outputs) < output_bytes / 2, saves_input = drop(values) < input_bytes / 2;
  const double saved = static_cast<double>(allocated.current()) - (saves_output ? output_bytes : 0) -
                       (saves_input ? input_bytes : 0);
  // The input of the first layer is in memory anyway.
  memory.kept = {.inner_bytes = std::max(saved, 0.0),
                 .output_bytes = output_bytes,
                 .saves_input = saves_input && !link.is_first,
                 .saves_output = saves_output};
  if (roots.edges.empty()) return memory;
  BackwardBytes backward(link.layer, allocated);
  run_backward(roots);
  memory.backward_bytes = backward.most();
  memory.gradient_bytes = backward.gradients();
  memory.largest_gradient_bytes = backward.largest_gradient();
  return memory;
}

/// The first part of a split backward, and the bytes that it leaves for the second part.
void measure_parts(plan::LayerMemory& memory, const ChainLink& link, const Fields& inputs) {
  const Fields leaves = leaves_for(link, inputs);
  parallel::AllocatedBytes allocated(device_of(inputs).type());
  Fields values = leaves.map([](const at::Tensor& leaf) { return leaf.clone(); });
  torch::autograd::edge_list begins;
  for (const auto& [name, value] : values) {
    if (value.requires_grad()) begins.push_back(torch::autograd::impl::gradient_edge(value));
  }
  Fields outputs = model::run_layer(link.layer, values, link.carried, link.carried_on);
  if (begins.empty()) {  // no earlier layer: all is left for the second part
    outputs = {};
    values = {};
    memory.input_backward_bytes = memory.kept.output_bytes;
    memory.for_weights_bytes = memory.kept.inner_bytes + memory.kept.output_bytes;
    return;
  }
  const auto before = static_cast<double>(allocated.current());
  allocated.reset_peak();
  std::optional<parallel::InputBackward> first;
  {
    model::Tensors roots, gradients;
    for (const auto& [name, output] : outputs) {
      if (!output.requires_grad()) continue;
      roots.push_back(output);
      gradients.push_back(at::ones(output.sizes(), output.options().requires_grad(false)));
    }
    outputs = {};
    values = {};
    if (roots.empty()) return;
    first.emplace(parallel::backward_of_inputs(roots, gradients, begins));
  }
  memory.input_backward_bytes = static_cast<double>(allocated.peak()) - before;
  first->gradients.clear();
  memory.for_weights_bytes = static_cast<double>(allocated.current());
}

}  // namespace

std::vector<plan::LayerMemory> profile_memory(const std::vector<model::Layer>& layers, const Fields& inputs,
                                              BackwardParts parts) {
  const model::Untouched untouched(layers);
  const std::vector<model::SkipNames> carried = model::carried_skips(layers);
  std::vector<plan::LayerMemory> profile;
  Fields values = inputs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const model::BorrowedMemory memory(layers[i], device_of(inputs));
    const ChainLink link{
        .layer = layers[i], .carried = carried[i], .carried_on = carried[i + 1], .is_first = i == 0};
    profile.push_back(memory_of(link, values));
    if (parts == BackwardParts::kTwo) measure_parts(profile.back(), link, values);
    const at::NoGradGuard no_grad;
    values = model::run_layer(layers[i], values, carried[i], carried[i + 1]);
  }
  return profile;
}

}  // namespace trireme::train
