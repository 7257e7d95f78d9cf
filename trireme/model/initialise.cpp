#include "trireme/model/initialise.h"

#include <cmath>
#include <numbers>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::model {
namespace {

constexpr std::uint64_t kParameterKey = Random::key_of("parameter");

template <class Value>
Value uniform(Random& random) {
  return 2 * static_cast<Value>(random.uniform()) - 1;
}

template <class Value>
Value normal(Random& random) {
  const double length = std::sqrt(-2 * std::log(1 - double{random.uniform()}));
  return static_cast<Value>(length * std::cos(2 * std::numbers::pi * double{random.uniform()}));
}

template <class Value>
void fill(at::Tensor& tensor, double scale, Value (*next)(Random&), Random random) {
  Value* values = tensor.data_ptr<Value>();
  const std::int64_t count = tensor.numel();
  for (std::int64_t i = 0; i < count; ++i) values[i] = next(random) * static_cast<Value>(scale);
}

/// "conv1.weight" of "conv1.bias".
std::string weight_beside(const std::string& bias) {
  return bias.substr(0, bias.size() - std::string("bias").size()) + "weight";
}

struct Distribution {
  float (*f32)(Random&);
  double (*f64)(Random&);
};

void fill(at::Tensor tensor, double scale, const Distribution& distribution, std::uint64_t seed,
          const std::string& name) {
  if (tensor.is_meta()) return;  // deferred
  const at::NoGradGuard no_grad;
  at::Tensor values = tensor.is_contiguous() && tensor.is_cpu()
                          ? tensor
                          : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  const Random random(seed, kParameterKey, Random::key_of(name));
  require(values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble, "parameter ", name,
          " cannot be initialised: it is ", values.scalar_type(), ", not f32 or f64");
  if (values.scalar_type() == at::kFloat) {
    fill<float>(values, scale, distribution.f32, random);
  } else {
    fill<double>(values, scale, distribution.f64, random);
  }
  if (!values.is_same(tensor)) tensor.copy_(values);
}

}  // namespace

void fill_uniform(at::Tensor tensor, double bound, std::uint64_t seed, const std::string& name) {
  fill(std::move(tensor), bound, {uniform<float>, uniform<double>}, seed, name);
}

void fill_normal(at::Tensor tensor, double standard_deviation, std::uint64_t seed, const std::string& name) {
  fill(std::move(tensor), standard_deviation, {normal<float>, normal<double>}, seed, name);
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
    const double fan_in = static_cast<double>(weight->numel()) / static_cast<double>(weight->size(0));
    fill_uniform(parameter.value(), 1 / std::sqrt(fan_in), seed, name);
  }
}

}  // namespace trireme::model
