#include "trireme/train/estimate/layer_profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "trireme/base/clock.h"
#include "trireme/base/median.h"
#include "trireme/model/deferred.h"
#include "trireme/model/untouched.h"
#include "trireme/parallel/allocated_bytes.h"
#include "trireme/parallel/pipeline/split_backward.h"
#include "trireme/train/plan/internal/chain_link.h"

namespace trireme::train {
namespace {

struct Sample {
  double forward_s = 0, backward_s = 0;
  std::int64_t kept_bytes = 0;
  Fields outputs;  ///< including skips that pass the layer
};

/// The time after the device has completed all its work.
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

/// Gives every trainable parameter a gradient of zeros, to which backwards add, for its lifetime.
class ZeroGradients {
 public:
  explicit ZeroGradients(const std::vector<model::Layer>& layers) {
    for (const model::Layer& layer : layers) {
      for (const auto& [name, parameter] : layer.parameters) {
        if (!parameter.requires_grad()) continue;
        at::Tensor tensor = parameter;
        before_.emplace_back(tensor, tensor.grad());
        tensor.mutable_grad() = at::zeros_like(tensor.detach());
      }
    }
  }
  ~ZeroGradients() {
    // A parameter of two layers has two entries. The first one has the original gradient.
    for (auto each = before_.rbegin(); each != before_.rend(); ++each)
      each->first.mutable_grad() = each->second;
  }
  ZeroGradients(const ZeroGradients&) = delete;
  ZeroGradients& operator=(const ZeroGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

/// Forwards and backwards through a chain, layer by layer, with the time of each.
class TimedPass {
 public:
  TimedPass(const std::vector<ChainLink>& links, const Fields& inputs)
      : links_(links), inputs_(inputs), device_(device_of(inputs)), times_(links.size()) {}

  std::vector<LayerTime> in_one_part() {
    forwards();
    for (std::size_t i = links_.size(); i-- > 0;) {
      const Roots roots = roots_of(i);
      const double begin_s = now_s_of(device_);
      if (!roots.outputs.empty()) torch::autograd::backward(roots.outputs, roots.gradients);
      times_[i].backward_s = now_s_of(device_) - begin_s;
      outputs_[i] = {};
    }
    return std::move(times_);
  }

  /// As checkpointed layers run: forwards that save nothing, and each layer's forward again right before its
  /// backward.
  std::vector<LayerTime> recomputed() {
    Fields values = inputs_;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      leaves_.push_back(leaves_for(links_[i], values));
      const at::NoGradGuard keeps_nothing;
      const double begin_s = now_s_of(device_);
      values = model::run_layer(links_[i].layer, leaves_[i], links_[i].carried, links_[i].carried_on);
      times_[i].bare_forward_s = now_s_of(device_) - begin_s;
    }
    outputs_.resize(links_.size());
    for (std::size_t i = links_.size(); i-- > 0;) {
      const double begin_s = now_s_of(device_);
      outputs_[i] = model::run_layer(links_[i].layer, leaves_[i], links_[i].carried, links_[i].carried_on);
      const Roots roots = roots_of(i);
      if (!roots.outputs.empty()) torch::autograd::backward(roots.outputs, roots.gradients);
      times_[i].recomputed_backward_s = now_s_of(device_) - begin_s;
      outputs_[i] = {};
    }
    return std::move(times_);
  }

  std::vector<LayerTime> in_two_parts() {
    forwards();
    std::vector<std::optional<parallel::InputBackward>> firsts(links_.size());
    for (std::size_t i = links_.size(); i-- > 0;) {
      const Roots roots = roots_of(i);
      torch::autograd::edge_list inputs;
      std::vector<std::size_t> places;
      for (std::size_t field = 0; field < leaves_[i].size(); ++field) {
        const at::Tensor leaf = leaves_[i].at(field);
        if (!leaf.requires_grad()) continue;
        inputs.push_back(torch::autograd::impl::gradient_edge(leaf));
        places.push_back(field);
      }
      const double begin_s = now_s_of(device_);
      if (!roots.outputs.empty() && !inputs.empty()) {
        firsts[i] = parallel::backward_of_inputs(roots.outputs, roots.gradients, inputs);
        for (std::size_t k = 0; k < places.size(); ++k) {
          at::Tensor leaf = leaves_[i].at(places[k]);
          leaf.mutable_grad() = firsts[i]->gradients[k];
        }
        times_[i].backward_input_s = now_s_of(device_) - begin_s;
      } else if (!roots.outputs.empty()) {  // no earlier layer: all of it is the second part
        torch::autograd::backward(roots.outputs, roots.gradients);
        times_[i].backward_weight_s = now_s_of(device_) - begin_s;
      }
      outputs_[i] = {};
    }
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (!firsts[i]) continue;
      const double begin_s = now_s_of(device_);
      firsts[i]->weights.run();
      times_[i].backward_weight_s = now_s_of(device_) - begin_s;
    }
    return std::move(times_);
  }

 private:
  struct Roots {
    model::Tensors outputs, gradients;
  };

  void forwards() {
    Fields values = inputs_;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      leaves_.push_back(leaves_for(links_[i], values));
      const double begin_s = now_s_of(device_);
      outputs_.push_back(
          model::run_layer(links_[i].layer, leaves_[i], links_[i].carried, links_[i].carried_on));
      times_[i].forward_s = now_s_of(device_) - begin_s;
      values = outputs_[i].map([](const at::Tensor& output) { return output.detach(); });
    }
  }

  /// The outputs that have a graph, with the gradients from the next layer; ones for the last layer.
  Roots roots_of(std::size_t layer) const {
    Roots roots;
    for (std::size_t field = 0; field < outputs_[layer].size(); ++field) {
      const at::Tensor output = outputs_[layer].at(field);
      if (!output.requires_grad()) continue;
      const bool is_last = layer + 1 == links_.size();
      at::Tensor gradient = is_last ? at::ones_like(output.detach()) : leaves_[layer + 1].at(field).grad();
      if (!gradient.defined()) continue;
      roots.outputs.push_back(output);
      roots.gradients.push_back(std::move(gradient));
    }
    return roots;
  }

  const std::vector<ChainLink>& links_;
  const Fields& inputs_;
  const c10::Device device_;
  std::vector<Fields> leaves_, outputs_;
  std::vector<LayerTime> times_;
};

/// The median of each layer and each part.
std::vector<LayerTime> medians(const std::vector<std::vector<LayerTime>>& passes) {
  std::vector<LayerTime> result(passes.front().size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (double LayerTime::*part :
         {&LayerTime::forward_s, &LayerTime::backward_s, &LayerTime::backward_input_s,
          &LayerTime::backward_weight_s, &LayerTime::bare_forward_s, &LayerTime::recomputed_backward_s}) {
      std::vector<double> seconds;
      for (const std::vector<LayerTime>& pass : passes) seconds.push_back(pass[i].*part);
      result[i].*part = median(seconds);
    }
  }
  return result;
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

std::vector<LayerTime> time_layers(const std::vector<model::Layer>& layers, const Fields& inputs,
                                   BackwardParts backward, int repeats) {
  const model::Untouched untouched(layers);
  const std::vector<model::SkipNames> carried = model::carried_skips(layers);
  std::deque<model::BorrowedMemory> memory;
  std::vector<ChainLink> links;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    memory.emplace_back(layers[i], device_of(inputs));
    links.push_back(
        {.layer = layers[i], .carried = carried[i], .carried_on = carried[i + 1], .is_first = i == 0});
  }
  const ZeroGradients gradients(layers);
  const auto repeated = [&](const auto& pass) {
    std::vector<std::vector<LayerTime>> passes;
    for (int repeat = 0; repeat <= repeats; ++repeat) passes.push_back(pass());
    passes.erase(passes.begin());
    return medians(passes);
  };
  std::vector<LayerTime> times = repeated([&] { return TimedPass(links, inputs).in_one_part(); });
  const std::vector<LayerTime> again = repeated([&] { return TimedPass(links, inputs).recomputed(); });
  for (std::size_t i = 0; i < times.size(); ++i) {
    times[i].bare_forward_s = again[i].bare_forward_s;
    times[i].recomputed_backward_s = again[i].recomputed_backward_s;
  }
  if (backward == BackwardParts::kOne) return times;
  const std::vector<LayerTime> parts = repeated([&] { return TimedPass(links, inputs).in_two_parts(); });
  for (std::size_t i = 0; i < times.size(); ++i) {
    times[i].backward_input_s = parts[i].backward_input_s;
    times[i].backward_weight_s = parts[i].backward_weight_s;
  }
  return times;
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
