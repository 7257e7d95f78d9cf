#include "trireme/train/layer_profile.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <mutex>

#include "trireme/base/clock.h"
#include "trireme/parallel/allocated_bytes.h"

namespace trireme::train {
namespace {

/// Puts running statistics and the random state back when it dies.
class Untouched {
 public:
  explicit Untouched(const std::vector<model::Layer>& layers)
      : generator_(at::globalContext().defaultGenerator(at::kCPU)) {
    const std::lock_guard lock(generator_.mutex());
    random_ = generator_.get_state();
    for (const model::Layer& layer : layers) {
      for (const auto& [name, buffer] : layer.buffers) buffers_.emplace_back(buffer, buffer.clone());
    }
  }
  ~Untouched() {
    const at::NoGradGuard no_grad;
    for (auto& [buffer, before] : buffers_) buffer.copy_(before);
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(random_);
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  at::Generator generator_;
  at::Tensor random_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

struct Sample {
  double forward_s = 0, backward_s = 0;
  std::int64_t kept_bytes = 0;
  at::Tensor output;
};

Sample run_once(const model::Layer& layer, const at::Tensor& input, bool is_first) {
  const at::Tensor leaf = input.detach();
  if (!is_first && leaf.is_floating_point()) leaf.requires_grad_(true);
  torch::autograd::variable_list wanted;
  if (leaf.requires_grad()) wanted.push_back(leaf);
  for (const auto& [name, parameter] : layer.parameters) {
    if (parameter.requires_grad()) wanted.push_back(parameter);
  }
  Sample sample;
  const parallel::AllocatedBytes allocated;
  const double begin_s = now_s();
  at::Tensor output = layer.forward(leaf);
  sample.forward_s = now_s() - begin_s;
  sample.kept_bytes = allocated.current();
  sample.output = output.detach();
  if (wanted.empty() || !output.requires_grad()) return sample;
  const at::Tensor gradient = at::ones_like(sample.output);
  const double middle_s = now_s();
  torch::autograd::grad({output}, wanted, {gradient}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                        /*allow_unused=*/true);
  sample.backward_s = now_s() - middle_s;
  return sample;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<plan::Layer> profile_layers(const std::vector<model::Layer>& layers, const at::Tensor& input,
                                        int repeats) {
  const Untouched untouched(layers);
  std::vector<plan::Layer> profile;
  at::Tensor values = input;
  for (const model::Layer& layer : layers) {
    const bool is_first = profile.empty();
    Sample sample = run_once(layer, values, is_first);
    std::vector<double> forward_s, backward_s;
    for (int i = 0; i < repeats; ++i) {
      sample = run_once(layer, values, is_first);
      forward_s.push_back(sample.forward_s);
      backward_s.push_back(sample.backward_s);
    }
    plan::Layer costs{.name = layer.name,
                      .forward_s = median(forward_s),
                      .backward_s = median(backward_s),
                      .activation_bytes = static_cast<double>(std::max<std::int64_t>(sample.kept_bytes, 0)),
                      .output_bytes = static_cast<double>(sample.output.nbytes())};
    for (const auto& [name, parameter] : layer.parameters)
      costs.parameter_bytes += static_cast<double>(parameter.nbytes());
    profile.push_back(std::move(costs));
    values = sample.output;
  }
  return profile;
}

}  // namespace trireme::train
