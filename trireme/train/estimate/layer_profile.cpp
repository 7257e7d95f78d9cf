#include "trireme/train/estimate/layer_profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/base/median.h"
#include "trireme/model/deferred.h"
#include "trireme/model/untouched.h"
#include "trireme/parallel/allocated_bytes.h"
#include "trireme/train/estimate/layer_memory.h"
#include "trireme/train/plan/internal/chain_link.h"

namespace trireme::train {
namespace {

struct Sample {
  double forward_s = 0, backward_s = 0;
  std::int64_t kept_bytes = 0;
  Fields outputs;  ///< and the skips that pass the layer
};

/// Behind all that the device has been given to do.
double now_s_of(c10::Device device) {
  if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
  return now_s();
}

Sample run_once(const ChainLink& link, const Fields& inputs) {
  const c10::Device device = device_of(inputs);
  const Fields leaves = leaves_for(link, inputs);
  torch::autograd::variable_list wanted;
  for (const auto& [name, leaf] : leaves) {
    if (leaf.requires_grad()) wanted.push_back(leaf);
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
  sample.outputs = outputs.map([](const at::Tensor& output) { return output.detach(); });
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
    const ChainLink link{
        .layer = layer, .carried = carried[i], .carried_on = carried[i + 1], .is_first = i == 0};
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
  std::vector<plan::Recomputable> profile;
  for (const plan::LayerMemory& layer : profile_memory(layers, inputs)) {
    profile.push_back(layer.kept);
    profile.back().forward_s = times[profile.size() - 1].forward_s;
  }
  return profile;
}

}  // namespace trireme::train
