#include "trireme/model/untouched.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <mutex>

namespace trireme::model {

EvaluationMode::EvaluationMode(const torch::nn::Module& module) {
  for (const auto& each : module.modules()) before_.emplace_back(each, each->is_training());
  enter();
}

EvaluationMode::EvaluationMode(const std::vector<Layer>& layers) {
  for (const Layer& layer : layers) {
    for (const auto& module : layer.modules) {
      for (const auto& each : module->modules()) before_.emplace_back(each, each->is_training());
    }
  }
  enter();
}

void EvaluationMode::enter() {
  for (const auto& [module, training] : before_) {
    if (module->is_training()) module->eval();
  }
}

/// A module's train() sets what it holds as well, and that comes behind it in the list.
EvaluationMode::~EvaluationMode() {
  for (const auto& [module, training] : before_) {
    if (module->is_training() != training) module->train(training);
  }
}

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

Untouched::Untouched(const torch::nn::Module& module) : random_(random_state()) {
  for (const at::Tensor& buffer : module.buffers()) keep(buffer);
}

Untouched::Untouched(const std::vector<Layer>& layers) : random_(random_state()) {
  for (const Layer& layer : layers) {
    for (const auto& [name, buffer] : layer.buffers) keep(buffer);
  }
}

void Untouched::keep(const at::Tensor& buffer) {
  if (buffer.defined()) buffers_.emplace_back(buffer, buffer.detach().clone());
}

Untouched::~Untouched() {
  const at::NoGradGuard no_grad;
  // Under another version counter: autograd would take the buffer for one that a backward needs as it was.
  for (auto& [buffer, before] : buffers_) buffer.variable_data().copy_(before);
  set_random_state(random_);
}

}  // namespace trireme::model
