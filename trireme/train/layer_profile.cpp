#include "trireme/train/layer_profile.h"

#include <ATen/ops/ones_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/autograd.h>

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

}  // namespace trireme::train
