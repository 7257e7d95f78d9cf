#include "trireme/model/deferred.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/model/skips.h"
#include "trireme/model/untouched.h"

namespace trireme::model {
namespace {

constexpr auto kKey = c10::DispatchKey::DeferredInit;

/// Runs an operator with its device argument set to the meta device.
void on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t begin = stack->size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "device") (*stack)[begin + i] = c10::Device(c10::kMeta);
  }
  const c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  op.callBoxed(stack);
}

/// Gives the storage and device of `there` to `tensor` itself, so all its holders see them.
void take_storage(const at::Tensor& tensor, const at::Tensor& there) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(there.storage());
  impl->_change_backend_component_keys(there.device());
}

at::Tensor room_for(const at::Tensor& tensor, c10::Device device) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
}

/// Allocates new memory on a device; the old values are lost.
void give_memory(const at::Tensor& tensor, c10::Device device) {
  const at::NoGradGuard no_grad;
  take_storage(tensor, room_for(tensor, device));
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

template <class Visit>
void for_each_deferred(const Named& tensors, const Visit& visit) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_meta()) visit(name, tensor);
  }
}

at::Tensor zeros_of(const at::Tensor& shape) {
  return at::zeros(shape.sizes(), shape.options().device(at::kCPU));
}

at::Tensor on_meta_device(const at::Tensor& tensor) { return tensor.to(at::kMeta); }

double first_value(const std::string& buffer) {
  if (buffer.ends_with("running_mean") || buffer.ends_with("num_batches_tracked")) return 0;
  if (buffer.ends_with("running_var")) return 1;
  throw InvalidArgument(text("buffer '", buffer,
                             "' of a deferred model has a value that only its constructor knows; build the "
                             "model without deferred()"));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_meta>());
}

DeferredScope::DeferredScope() : include_(kKey) {}

bool is_deferred(const torch::nn::Module& module) {
  const auto has_no_memory = [](const at::Tensor& tensor) { return tensor.is_meta(); };
  return std::ranges::any_of(module.parameters(), has_no_memory) ||
         std::ranges::any_of(module.buffers(), has_no_memory);
}

void materialise(const Layer& layer, c10::Device device) {
  for_each_deferred(layer.buffers, [device](const std::string& name, const at::Tensor& buffer) {
    const double value = first_value(name);
    give_memory(buffer, device);
    const at::NoGradGuard no_grad;
    buffer.fill_(value);
  });
  for_each_deferred(layer.parameters, [device](const std::string& /*name*/, const at::Tensor& parameter) {
    give_memory(parameter, device);
  });
}

/// Does not use Tensor::set_data, which rejects third-party devices.
void move_to(const Layer& layer, c10::Device device) {
  const at::NoGradGuard no_grad;
  for (const Named* tensors : {&layer.parameters, &layer.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      if (tensor.device() == device) continue;
      const at::Tensor there = room_for(tensor, device);
      if (!tensor.is_meta()) there.copy_(tensor);
      take_storage(tensor, there);
    }
  }
}

Fields outputs_on_shapes(const std::vector<Layer>& layers, const Fields& inputs) {
  const at::NoGradGuard no_grad;
  const std::vector<SkipNames> carried = carried_skips(layers);
  Fields values = inputs.map(on_meta_device);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    try {
      values = run_layer(layers[i], values, carried[i], carried[i + 1]);
    } catch (const c10::NotImplementedError&) {
      const BorrowedMemory memory(layers[i]);
      values = run_layer(layers[i], values.map(zeros_of), carried[i], carried[i + 1]).map(on_meta_device);
    }
  }
  return values.map(zeros_of);
}

Fields outputs_of_trial(Model& model, const Fields& inputs) {
  const at::NoGradGuard no_grad;
  const EvaluationMode mode(model);
  const Untouched untouched(model);
  return is_deferred(model) ? outputs_on_shapes(layers_or_whole(model), inputs) : model.forward_all(inputs);
}

BorrowedMemory::BorrowedMemory(const Layer& layer, c10::Device device) {
  for (const Named* tensors : {&layer.parameters, &layer.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      if (tensor.device() != device) borrowed_.push_back({.tensor = tensor, .before = tensor.detach()});
    }
  }
  move_to(layer, device);
  const at::NoGradGuard no_grad;
  for (const auto& [tensor, before] : borrowed_) {
    if (before.is_meta()) tensor.fill_(tensor.is_floating_point() ? 0.01 : 0);
  }
}

BorrowedMemory::~BorrowedMemory() {
  for (const auto& [tensor, before] : borrowed_) take_storage(tensor, before);
}

}  // namespace trireme::model
