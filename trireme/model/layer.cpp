#include "trireme/model/layer.h"

#include <torch/nn/modules/container/any.h>

#include <set>

namespace trireme::model {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

/// The model's tensors that the modules also have. A tensor with several names gets the first one.
template <class Of>
Named shared_with(const torch::nn::Module& model,
                  const std::vector<std::shared_ptr<torch::nn::Module>>& modules, const Of& tensors_of) {
  std::set<const void*> wanted;
  for (const auto& module : modules) {
    for (const auto& item : tensors_of(*module)) wanted.insert(item.value().unsafeGetTensorImpl());
  }
  Named named;
  for (const auto& item : tensors_of(model)) {
    if (wanted.erase(item.value().unsafeGetTensorImpl()) > 0) named.emplace_back(item.key(), item.value());
  }
  return named;
}

Layer with_tensors(Layer layer, const torch::nn::Module& model,
                   std::vector<std::shared_ptr<torch::nn::Module>> modules) {
  layer.parameters =
      shared_with(model, modules, [](const auto& module) { return module.named_parameters(); });
  layer.buffers = shared_with(model, modules, [](const auto& module) { return module.named_buffers(); });
  layer.modules = std::move(modules);
  return layer;
}

}  // namespace

Layer make_layer(const torch::nn::Module& model, std::string name,
                 std::vector<std::shared_ptr<torch::nn::Module>> modules,
                 std::function<Fields(const Fields&)> forward) {
  return with_tensors({.name = std::move(name), .forward = std::move(forward)}, model, std::move(modules));
}

Tensors buffers_of(const std::vector<Layer>& layers) {
  Tensors buffers;
  for (const Layer& layer : layers) {
    for (const auto& [name, buffer] : layer.buffers) buffers.push_back(buffer);
  }
  return buffers;
}

std::vector<Layer> layers_of(const torch::nn::Sequential& chain) {
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < chain->size(); ++i) {
    torch::nn::AnyModule child = *(chain->begin() + static_cast<std::ptrdiff_t>(i));
    layers.push_back(make_layer(*chain, std::to_string(i), {child.ptr()},
                                [child](const at::Tensor& input) mutable { return child.forward(input); }));
  }
  return layers;
}

}  // namespace trireme::model
