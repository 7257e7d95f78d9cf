#include "trireme/model/initialise.h"

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::model {
namespace {

constexpr std::uint64_t kParameterKey = Random::key_of("parameter");

template <class Value>
void fill(at::Tensor& tensor, double bound, Random random) {
  Value* values = tensor.data_ptr<Value>();
  const std::int64_t count = tensor.numel();
  const auto scale = static_cast<Value>(bound);
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = (2 * static_cast<Value>(random.uniform()) - 1) * scale;
  }
}

/// "conv1.weight" of "conv1.bias".
std::string weight_beside(const std::string& bias) {
  return bias.substr(0, bias.size() - std::string("bias").size()) + "weight";
}

}  // namespace

void fill_uniform(at::Tensor tensor, double bound, std::uint64_t seed, const std::string& name) {
  const at::NoGradGuard no_grad;
  at::Tensor values = tensor.is_contiguous() && tensor.is_cpu()
                          ? tensor
                          : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  const Random random(seed, kParameterKey, Random::key_of(name));
  require(values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble, "parameter ", name,
          " cannot be initialised: it is ", values.scalar_type(), ", not f32 or f64");
  if (values.scalar_type() == at::kFloat) {
    fill<float>(values, bound, random);
  } else {
    fill<double>(values, bound, random);
  }
  if (!values.is_same(tensor)) tensor.copy_(values);
}

void initialise(torch::nn::Module& module, std::uint64_t seed) {
  const auto parameters = module.named_parameters();
  for (const auto& parameter : parameters) {
    const std::string& name = parameter.key();
    const bool is_weight = name.ends_with("weight");
    require(is_weight || name.ends_with("bias"), "parameter ", name,
            " cannot be initialised: neither a weight nor a bias");
    const at::Tensor* weight = is_weight ? &parameter.value() : parameters.find(weight_beside(name));
    require(weight != nullptr && weight->dim() >= 2, "parameter ", name, " has no weight beside it");
    const double fan_in = static_cast<double>(weight->numel() / weight->size(0));
    fill_uniform(parameter.value(), 1 / std::sqrt(fan_in), seed, name);
  }
}

}  // namespace trireme::model
