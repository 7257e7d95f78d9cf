#include "trireme/parallel/zero/rounded_parameters.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "trireme/parallel/tensor/linear.h"

namespace trireme::parallel {
namespace {

template <class... Kinds>
bool is_one_of(const torch::nn::Module& module) {
  return ((dynamic_cast<const Kinds*>(&module) != nullptr) || ...);
}

/// Whether the module uses this parameter only in products. Biases are excluded: for inputs with more than
/// two dims, torch::nn::Linear adds them after the product, where only the sum is rounded.
bool multiplies(const torch::nn::Module& module, const std::string& parameter) {
  using namespace torch::nn;
  return parameter == "weight" &&
         is_one_of<LinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl,
                   ConvTranspose3dImpl, ColumnParallelLinear, RowParallelLinear>(module);
}

}  // namespace

std::set<std::string> rounded_parameters(const std::vector<model::Layer>& layers) {
  std::set<const c10::TensorImpl*> in_products, elsewhere;
  for (const model::Layer& layer : layers) {
    for (const auto& module : layer.modules) {
      for (const auto& each : module->modules()) {
        for (const auto& item : each->named_parameters(/*recurse=*/false)) {
          const c10::TensorImpl* parameter = item.value().unsafeGetTensorImpl();
          (multiplies(*each, item.key()) ? in_products : elsewhere).insert(parameter);
        }
      }
    }
  }
  std::set<std::string> names;
  for (const model::Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters) {
      const c10::TensorImpl* known = parameter.unsafeGetTensorImpl();
      if (parameter.scalar_type() == at::kFloat && in_products.contains(known) && !elsewhere.contains(known))
        names.insert(name);
    }
  }
  return names;
}

}  // namespace trireme::parallel
