#include "trireme/model/initialise.h"

#include <c10/util/accumulate.h>

#include <cmath>
#include <map>
#include <numbers>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/model/internal/torch_values.h"

namespace trireme::model {
namespace {

thread_local const FirstValuesOf* open_scope = nullptr;

bool gets_values(const at::Tensor& parameter) {
  return !parameter.is_meta() && (open_scope == nullptr || open_scope->contains(parameter));
}

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

/// "conv1.weight" for "conv1.bias".
std::string weight_beside(const std::string& bias) {
  return bias.substr(0, bias.size() - std::string("bias").size()) + "weight";
}

struct Distribution {
  float (*f32)(Random&);
  double (*f64)(Random&);
  std::uint64_t draws;  ///< random draws per number
};
constexpr Distribution kUniform = {uniform<float>, uniform<double>, 1};
constexpr Distribution kNormal = {normal<float>, normal<double>, 2};

/// Fills `part` with the box's numbers out of those that `whole` draws for the whole parameter.
template <class Value>
void fill(at::Tensor& part, const ParameterBox& box, double scale, Value (*next)(Random&),
          std::uint64_t draws, const Random& whole) {
  Value* values = part.data_ptr<Value>();
  for_each_run(box, [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t count) {
    Random random = whole;
    random.skip(static_cast<std::uint64_t>(in_whole) * draws);
    for (std::int64_t i = in_part; i < in_part + count; ++i)
      values[i] = next(random) * static_cast<Value>(scale);
  });
}

void fill(const ParameterBox& box, double scale, const Distribution& distribution, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  if (!gets_values(box.parameter)) return;
  const at::Tensor tensor = box.values();
  at::Tensor values = tensor.is_contiguous() && tensor.is_cpu()
                          ? tensor
                          : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  const Random random(seed, kParameterKey, Random::key_of(box.name));
  require(values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble, "parameter ", box.name,
          " cannot be initialised: it is ", values.scalar_type(), ", not f32 or f64");
  if (values.scalar_type() == at::kFloat) {
    fill<float>(values, box, scale, distribution.f32, distribution.draws, random);
  } else {
    fill<double>(values, box, scale, distribution.f64, distribution.draws, random);
  }
  if (!values.is_same(tensor)) tensor.copy_(values);
}

}  // namespace

FirstValuesOf::FirstValuesOf(const std::vector<Layer>& layers) : before_(open_scope) {
  for (const Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters)
      parameters_.insert(parameter.unsafeGetTensorImpl());
  }
  open_scope = this;
}

FirstValuesOf::~FirstValuesOf() { open_scope = before_; }

bool FirstValuesOf::is_open() { return open_scope != nullptr; }

bool FirstValuesOf::contains(const at::Tensor& parameter) const {
  return parameters_.contains(parameter.unsafeGetTensorImpl());
}

void fill_uniform(const ParameterBox& box, double bound, std::uint64_t seed) {
  fill(box, bound, kUniform, seed);
}

void fill_normal(const ParameterBox& box, double standard_deviation, std::uint64_t seed) {
  fill(box, standard_deviation, kNormal, seed);
}

void fill_constant(const ParameterBox& box, double value) {
  const at::NoGradGuard no_grad;
  if (gets_values(box.parameter)) box.values().fill_(value);
}

void fill_constant(at::Tensor tensor, double value) {
  fill_constant(whole_box("", std::move(tensor)), value);
}

void fill_uniform(at::Tensor tensor, double bound, std::uint64_t seed, const std::string& name) {
  fill_uniform(whole_box(name, std::move(tensor)), bound, seed);
}

void fill_normal(at::Tensor tensor, double standard_deviation, std::uint64_t seed, const std::string& name) {
  fill_normal(whole_box(name, std::move(tensor)), standard_deviation, seed);
}

namespace {

void fill(const ParameterBox& box, const FirstValues& values, std::uint64_t seed) {
  switch (values.form) {
    case FirstValues::Form::kConstant:
      return fill_constant(box, values.scale);
    case FirstValues::Form::kUniform:
      return fill_uniform(box, values.scale, seed);
    case FirstValues::Form::kNormal:
      break;
  }
  fill_normal(box, values.scale, seed);
  const at::NoGradGuard no_grad;
  if (values.zero_row) box.parameter.detach().select(0, *values.zero_row).zero_();
}

/// For Linear and Conv layers, and others whose weight and bias have the same meaning. `sizes` has the sizes
/// of all parameters by name.
FirstValues as_linear(const std::string& name,
                      const std::map<std::string, std::vector<std::int64_t>>& sizes) {
  const bool is_weight = name.ends_with("weight");
  require(is_weight || name.ends_with("bias"), "parameter ", name,
          " has no first value: it is no weight or bias, and not of a module of libtorch; override "
          "Model::initialise, or build the model without deferred()");
  const auto weight = sizes.find(is_weight ? name : weight_beside(name));
  require(
      weight != sizes.end() && weight->second.size() >= 2, "parameter ", name,
      " has no first value: there is no weight of two or more dims next to it, and it is not of a module of "
      "libtorch; override Model::initialise, or build the model without deferred()");
  const std::int64_t fan_in = c10::multiply_integers(weight->second.begin() + 1, weight->second.end());
  return {.form = FirstValues::Form::kUniform, .scale = 1 / std::sqrt(static_cast<double>(fan_in))};
}

}  // namespace

void initialise(torch::nn::Module& module, std::uint64_t seed) {
  const std::vector<ParameterBox> boxes = parameter_boxes(module);
  const std::map<std::string, FirstValues> of_torch = torch_values(module);
  std::map<std::string, std::vector<std::int64_t>> sizes;
  for (const ParameterBox& box : boxes) sizes[box.name] = box.global_sizes;
  for (const ParameterBox& box : boxes) {
    if (!gets_values(box.parameter)) continue;
    const auto known = of_torch.find(box.name);
    fill(box, known != of_torch.end() ? known->second : as_linear(box.name, sizes), seed);
  }
}

}  // namespace trireme::model
