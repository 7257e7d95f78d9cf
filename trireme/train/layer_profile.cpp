#include "trireme/train/layer_profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/model/deferred.h"
#include "trireme/model/skips.h"
#include "trireme/model/untouched.h"
#include "trireme/parallel/allocated_bytes.h"

namespace trireme::train {
namespace {

struct Sample {
  double forward_s = 0, backward_s = 0;
  std::int64_t kept_bytes = 0;
  Fields outputs;  ///< and the skips that pass the layer
};

/// A layer and the skips that travel to it and on.
struct Link {
  const model::Layer& layer;
  const model::SkipNames &carried, &carried_on;
  bool is_first = false;
};

at::Tensor detached(const at::Tensor& tensor) { return tensor.detach(); }

/// Behind all that the device has been given to do.
double now_s_of(c10::Device device) {
  if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
  return now_s();
}

c10::Device device_of(const Fields& inputs) {
  return inputs.empty() ? c10::Device(c10::kCPU) : inputs.at(0).device();
}

Sample run_once(const Link& link, const Fields& inputs) {
  const c10::Device device = device_of(inputs);
  const Fields leaves = inputs.map(detached);
  torch::autograd::variable_list wanted;
  for (const auto& [name, leaf] : leaves) {
    if (!link.is_first && leaf.is_floating_point()) wanted.push_back(leaf.requires_grad_(true));
  }
  for (const auto& [name, parameter] : link.layer.parameters) {
    if (parameter.requires_grad()) wanted.push_back(parameter);
  }
  Sample sample;
  const parallel::AllocatedBytes allocated(device.type());
  const double begin_s = now_s_of(device);
  const Fields outputs = model::run_layer(link.layer, leaves, link.carried, link.carried_on);
  sample.forward_s = now_s_of(device) - begin_s;
  sample.kept_bytes = allocated.current();
  model::Tensors roots, gradients;
  sample.outputs = outputs.map(detached);
  for (const auto& [name, output] : outputs) {
    if (!output.requires_grad()) continue;
    roots.push_back(output);
    gradients.push_back(at::ones_like(output.detach()));
  }
  if (wanted.empty() || roots.empty()) return sample;
  const double middle_s = now_s_of(device);
  torch::autograd::grad(roots, wanted, gradients, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                        /*allow_unused=*/true);
  sample.backward_s = now_s_of(device) - middle_s;
  return sample;
}

double bytes_of(const Fields& tensors) {
  double bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

/// What the graph alone holds on to, and what of that is the layer's inputs and outputs: those are let go of
/// one after the other.
plan::Recomputable saved_in(const Link& link, const Fields& inputs) {
  const Fields leaves = inputs.map(detached);
  if (!link.is_first) {
    for (const auto& [name, leaf] : leaves) {
      if (leaf.is_floating_point()) leaf.requires_grad_(true);
    }
  }
  const parallel::AllocatedBytes allocated(device_of(inputs).type());
  // Behind an operator, as in the chain: a graph that begins at a leaf holds it.
  Fields values = leaves.map([](const at::Tensor& leaf) { return leaf.clone(); });
  Fields outputs = model::run_layer(link.layer, values, link.carried, link.carried_on);
  torch::autograd::edge_list graph;
  for (const auto& [name, output] : outputs) {
    if (output.requires_grad()) graph.push_back(torch::autograd::impl::gradient_edge(output));
  }
  const double input_bytes = bytes_of(values), output_bytes = bytes_of(outputs);
  const auto drop = [&](Fields& tensors) {
    const auto before = static_cast<double>(allocated.current());
    tensors = {};
    return before - static_cast<double>(allocated.current());
  };
  const bool saves_output = drop(outputs) < output_bytes / 2, saves_input = drop(values) < input_bytes / 2;
  const double saved = static_cast<double>(allocated.current()) - (saves_output ? output_bytes : 0) -
                       (saves_input ? input_bytes : 0);
  // What goes into the first is there in any case.
  return {.inner_bytes = std::max(saved, 0.0),
          .output_bytes = output_bytes,
          .saves_input = saves_input && !link.is_first,
          .saves_output = saves_output};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<plan::Layer> profile_layers(const std::vector<model::Layer>& layers, const Fields& inputs,
                                        int repeats) {
  const model::Untouched untouched(layers);
  std::vector<plan::Layer> profile;
  const std::vector<model::SkipNames> carried = model::carried_skips(layers);
  Fields values = inputs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const model::Layer& layer = layers[i];
    const model::BorrowedMemory memory(layer, device_of(inputs));
    const Link link{.layer = layer, .carried = carried[i], .carried_on = carried[i + 1], .is_first = i == 0};
    Sample sample = run_once(link, values);
    std::vector<double> forward_s, backward_s;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      sample = run_once(link, values);
      forward_s.push_back(sample.forward_s);
      backward_s.push_back(sample.backward_s);
    }
    plan::Layer costs{.name = layer.name,
                      .forward_s = median(forward_s),
                      .backward_s = median(backward_s),
                      .activation_bytes = static_cast<double>(std::max<std::int64_t>(sample.kept_bytes, 0)),
                      .output_bytes = bytes_of(sample.outputs)};
    for (const auto& [name, parameter] : layer.parameters)
      costs.parameter_bytes += static_cast<double>(parameter.nbytes());
    profile.push_back(std::move(costs));
    values = sample.outputs;
  }
  return profile;
}

std::vector<plan::Recomputable> profile_recomputable(const std::vector<model::Layer>& layers,
                                                     const Fields& inputs) {
  const std::vector<plan::Layer> times = profile_layers(layers, inputs);
  const model::Untouched untouched(layers);
  const std::vector<model::SkipNames> carried = model::carried_skips(layers);
  std::vector<plan::Recomputable> profile;
  Fields values = inputs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const model::BorrowedMemory memory(layers[i], device_of(inputs));
    const Link link{
        .layer = layers[i], .carried = carried[i], .carried_on = carried[i + 1], .is_first = i == 0};
    profile.push_back(saved_in(link, values));
    profile.back().forward_s = times[i].forward_s;
    const at::NoGradGuard no_grad;
    values = model::run_layer(layers[i], values, carried[i], carried[i + 1]);
  }
  return profile;
}

}  // namespace trireme::train
