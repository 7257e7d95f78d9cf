#include "trireme/model/internal/torch_values.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>

#include <algorithm>
#include <cmath>

#include "trireme/model/parameter_box.h"

namespace trireme::model {
namespace {

using torch::nn::Module;
using Values = std::map<std::string, FirstValues>;
using Form = FirstValues::Form;

template <class... Types>
bool is_one_of(const Module& module) {
  return ((dynamic_cast<const Types*>(&module) != nullptr) || ...);
}

FirstValues constant(double value) { return {.form = Form::kConstant, .scale = value}; }
FirstValues uniform(double bound) { return {.form = Form::kUniform, .scale = bound}; }

/// Glorot and Bengio, 2010: dims 0 and 1 are outputs and inputs, the others are the receptive field.
double fans(const at::Tensor& weight) {
  const auto field = static_cast<double>(weight.numel()) /
                     static_cast<double>(std::max<std::int64_t>(weight.size(0) * weight.size(1), 1));
  return static_cast<double>(weight.size(0) + weight.size(1)) * field;
}
FirstValues xavier_uniform(const at::Tensor& weight) { return uniform(std::sqrt(6 / fans(weight))); }
FirstValues xavier_normal(const at::Tensor& weight) {
  return {.form = Form::kNormal, .scale = std::sqrt(2 / fans(weight))};
}

bool is_norm(const Module& module) {
  using namespace torch::nn;
  return is_one_of<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                   InstanceNorm3dImpl, LayerNormImpl, GroupNormImpl>(module);
}

std::optional<std::int64_t> hidden_size(const Module& module) {
  using namespace torch::nn;
  const auto of = [&]<class Type>(const Type* cell) { return cell->options.hidden_size(); };
  if (const auto* lstm = dynamic_cast<const LSTMImpl*>(&module)) return of(lstm);
  if (const auto* gru = dynamic_cast<const GRUImpl*>(&module)) return of(gru);
  if (const auto* rnn = dynamic_cast<const RNNImpl*>(&module)) return of(rnn);
  if (const auto* lstm = dynamic_cast<const LSTMCellImpl*>(&module)) return of(lstm);
  if (const auto* gru = dynamic_cast<const GRUCellImpl*>(&module)) return of(gru);
  if (const auto* rnn = dynamic_cast<const RNNCellImpl*>(&module)) return of(rnn);
  return std::nullopt;
}

std::optional<FirstValues> of_embedding(const Module& module) {
  if (const auto* table = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module))
    return FirstValues{.form = Form::kNormal, .scale = 1, .zero_row = table->options.padding_idx()};
  if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module))
    return FirstValues{.form = Form::kNormal, .scale = 1, .zero_row = bag->options.padding_idx()};
  const auto* parts = dynamic_cast<const HoldsParts*>(&module);
  if (parts != nullptr && parts->is_embedding()) return FirstValues{.form = Form::kNormal, .scale = 1};
  return std::nullopt;
}

/// For a module whose parameters all have the same distribution.
std::optional<FirstValues> of_all(const Module& module) {
  if (const auto hidden = hidden_size(module))
    return uniform(*hidden > 0 ? 1 / std::sqrt(static_cast<double>(*hidden)) : 0);
  if (const auto* bilinear = dynamic_cast<const torch::nn::BilinearImpl*>(&module))
    return uniform(1 / std::sqrt(static_cast<double>(bilinear->weight.size(1))));
  if (const auto* prelu = dynamic_cast<const torch::nn::PReLUImpl*>(&module))
    return constant(prelu->options.init());
  return of_embedding(module);
}

/// `name` starts with `prefix`, the name of the module. Parameters of its children are passed as well.
void add_attention(const std::string& name, const at::Tensor& parameter, const std::string& prefix,
                   Values& values) {
  const std::string own = name.substr(prefix.size());
  if (own == "bias_k" || own == "bias_v") {
    values[name] = xavier_normal(parameter);
  } else if (own == "in_proj_bias" || own == "out_proj.bias") {
    values[name] = constant(0);
  } else if (own.ends_with("_proj_weight")) {
    values[name] = xavier_uniform(parameter);
  }
}

void add(const Module& module, const std::string& prefix, Values& values) {
  for (const auto& child : module.named_children()) add(*child.value(), prefix + child.key() + ".", values);
  const std::optional<FirstValues> one = of_all(module);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (one) values[prefix + item.key()] = *one;
    if (is_norm(module)) values[prefix + item.key()] = constant(item.key() == "weight" ? 1 : 0);
  }
  const bool is_attention = is_one_of<torch::nn::MultiheadAttentionImpl>(module);
  const bool is_transformer = is_one_of<torch::nn::TransformerImpl>(module);
  if (!is_attention && !is_transformer) return;
  for (const auto& item : module.named_parameters()) {
    const std::string name = prefix + item.key();
    if (is_attention) add_attention(name, item.value(), prefix, values);
    if (is_transformer && item.value().dim() > 1) values[name] = xavier_uniform(item.value());
  }
}

}  // namespace

std::map<std::string, FirstValues> torch_values(const Module& module) {
  Values values;
  add(module, "", values);
  return values;
}

}  // namespace trireme::model
