#include "trireme/parallel/pipeline/internal/stage.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <mutex>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

at::Tensor random_state() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

/// While it lives, random numbers go on from `state`, and buffers (running statistics, which have seen the
/// micro-batch already) come back as they were.
class SecondTime {
 public:
  SecondTime(const at::Tensor& state, const std::vector<model::Layer>& layers) : random_(random_state()) {
    set_random_state(state);
    for (const model::Layer& layer : layers) {
      for (const auto& [name, buffer] : layer.buffers) buffers_.emplace_back(buffer, buffer.clone());
    }
  }
  ~SecondTime() {
    const at::NoGradGuard no_grad;
    // Under another version counter: autograd would take the buffer for one that the backward needs as it
    // was.
    for (auto& [buffer, before] : buffers_) buffer.variable_data().copy_(before);
    set_random_state(random_);
  }
  SecondTime(const SecondTime&) = delete;
  SecondTime& operator=(const SecondTime&) = delete;

 private:
  at::Tensor random_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

/// Puts the modules of layers into evaluation mode while it lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(const std::vector<model::Layer>& layers) {
    for (const model::Layer& layer : layers) {
      for (const auto& module : layer.modules) {
        before_.emplace_back(module, module->is_training());
        module->eval();
      }
    }
  }
  ~EvaluationMode() {
    for (const auto& [module, training] : before_) module->train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

}  // namespace

at::Tensor Stage::run_layers(const at::Tensor& input) const {
  at::Tensor values = input;
  for (const model::Layer& layer : layers_) values = layer.forward(values);
  return values;
}

at::Tensor Stage::run(Live& live, int microbatch) const {
  at::Tensor values = live.input;
  const auto note_begin = [&] {
    if (live.begins.empty() && values.requires_grad())
      live.begins.push_back(torch::autograd::impl::gradient_edge(values));
  };
  note_begin();
  for (const model::Layer& layer : layers_) {
    values = layer.forward(values);
    note_begin();
  }
  return head_ ? head_(values, microbatch) : values;
}

at::Tensor Stage::forward(int microbatch, const at::Tensor& input) {
  Live live;
  live.input = input.detach();
  if (options_.wants_input_gradient && live.input.is_floating_point()) live.input.requires_grad_(true);
  at::Tensor output;
  if (options_.recompute) {
    live.random_state = random_state();
    const at::NoGradGuard no_grad;
    output = run(live, microbatch);
  } else {
    output = live.output = run(live, microbatch);
  }
  const bool fresh = live_.emplace(microbatch, std::move(live)).second;
  if (!fresh) throw InternalError(text("micro-batch ", microbatch, " goes forward a second time"));
  return output.detach();
}

void Stage::recompute(int microbatch) {
  Live& live = live_.at(microbatch);
  if (live.output.defined()) return;
  const SecondTime second(live.random_state, layers_);
  live.output = run(live, microbatch);
}

at::Tensor Stage::backward(int microbatch, const at::Tensor& output_gradient) {
  recompute(microbatch);
  const Live live = std::move(live_.extract(microbatch).mapped());
  if (!live.output.requires_grad()) return {};  // nothing to learn: fixed parameters on whole numbers
  torch::autograd::backward({live.output}, {output_gradient});
  return live.input.grad();
}

at::Tensor Stage::backward_input(int microbatch, const at::Tensor& output_gradient) {
  recompute(microbatch);
  Live& live = live_.at(microbatch);
  const at::Tensor input = live.input;
  InputBackward first = backward_of_inputs({live.output}, {output_gradient}, live.begins);
  live = {};
  live.weights = std::move(first.weights);
  unsplit_.insert(live.weights.unsplit().begin(), live.weights.unsplit().end());
  if (!input.requires_grad() || !first.gradients[0].defined()) return {};
  // Laid out as a leaf's gradient is.
  const at::Tensor& gradient = first.gradients[0];
  return torch::autograd::utils::obeys_layout_contract(gradient, input)
             ? gradient
             : torch::autograd::utils::clone_obey_contract(gradient, input);
}

void Stage::backward_weight(int microbatch) { live_.extract(microbatch).mapped().weights.run(); }

at::Tensor Stage::evaluate(const at::Tensor& input) {
  const EvaluationMode mode(layers_);
  const at::NoGradGuard no_grad;
  return run_layers(input);
}

}  // namespace trireme::parallel
