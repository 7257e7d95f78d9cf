#include "trireme/model/untouched.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <mutex>
#include <optional>

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

/// train() also sets the children of a module. They come later in the list, so their modes are restored after
/// it.
EvaluationMode::~EvaluationMode() {
  for (const auto& [module, training] : before_) {
    if (module->is_training() != training) module->train(training);
  }
}

namespace {

/// Skips a device without a context: it has drawn no numbers, and must not be initialized.
std::vector<at::Generator> generators() {
  std::vector<at::Generator> all = {at::globalContext().defaultGenerator(at::kCPU)};
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  if (!type) return all;
  const c10::DeviceIndex here = at::accelerator::getDeviceIndex();
  if (at::globalContext().getAcceleratorHooksInterface(type).hasPrimaryContext(here))
    all.push_back(at::globalContext().defaultGenerator(c10::Device(*type, here)));
  return all;
}

}  // namespace

std::vector<at::Tensor> random_state() {
  std::vector<at::Tensor> states;
  for (at::Generator& generator : generators()) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void set_random_state(const std::vector<at::Tensor>& states) {
  std::vector<at::Generator> all = generators();
  for (std::size_t i = 0; i < std::min(all.size(), states.size()); ++i) {
    const std::lock_guard lock(all[i].mutex());
    all[i].set_state(states[i]);
  }
}

Untouched::Untouched(const torch::nn::Module& module) : Untouched(module.buffers()) {}

Untouched::Untouched(const std::vector<Layer>& layers) : Untouched(buffers_of(layers)) {}

Untouched::Untouched(const Tensors& buffers) : random_(random_state()) {
  for (const at::Tensor& buffer : buffers) keep(buffer);
}

void Untouched::keep(const at::Tensor& buffer) {
  if (buffer.defined()) buffers_.emplace_back(buffer, buffer.detach().clone());
}

Untouched::~Untouched() {
  const at::NoGradGuard no_grad;
  // variable_data() has another version counter. Otherwise autograd would report that a saved buffer was
  // modified in place.
  for (auto& [buffer, before] : buffers_) buffer.variable_data().copy_(before);
  set_random_state(random_);
}

}  // namespace trireme::model
