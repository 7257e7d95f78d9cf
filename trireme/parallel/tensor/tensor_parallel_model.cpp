#include "trireme/parallel/tensor/tensor_parallel_model.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <typeinfo>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/model/deferred.h"
#include "trireme/model/parameter_box.h"
#include "trireme/parallel/context/sequence_pieces.h"
#include "trireme/parallel/tensor/collectives.h"
#include "trireme/parallel/tensor/internal/shipped_forms.h"

namespace trireme::parallel {
namespace {

struct Row {
  bool (*is)(const model::Model&);
  TensorLimits (*limits)(const model::Model&);
  TensorParallelModel (*form)(const model::Model&, const TensorParallelOptions&);
};

template <class Shipped>
constexpr Row row_of() {
  return {.is = [](const model::Model& whole) { return dynamic_cast<const Shipped*>(&whole) != nullptr; },
          .limits = [](const model::Model& whole) { return limits_of(dynamic_cast<const Shipped&>(whole)); },
          .form =
              [](const model::Model& whole, const TensorParallelOptions& options) {
                return form_of(dynamic_cast<const Shipped&>(whole), options);
              }};
}

/// Not Module::name(), which writes the name into the module: ranks that are threads may share it.
std::string type_of(const model::Model& model) { return c10::demangle(typeid(model).name()); }

constexpr std::array kForms = {row_of<model::Gpt>(), row_of<model::Mlp>()};

const Row* find_row(const model::Model& whole) {
  const auto* row = std::ranges::find_if(kForms, [&](const Row& each) { return each.is(whole); });
  return row == kForms.end() ? nullptr : row;
}

TensorParallelModel form_of_any(const model::Model& whole, const TensorParallelOptions& options) {
  if (const auto* own = dynamic_cast<const TensorParallelizable*>(&whole))
    return own->tensor_parallel(options);
  const Row* row = find_row(whole);
  require(row != nullptr, "the model of type ", type_of(whole),
          " has no tensor-parallel form; let it derive from parallel::TensorParallelizable");
  return row->form(whole, options);
}

using Sizes = std::vector<std::int64_t>;

std::map<std::string, Sizes> sizes_in(const torch::nn::Module& module) {
  std::map<std::string, Sizes> sizes;
  for (const model::ParameterBox& box : model::parameter_boxes(module)) sizes[box.name] = box.global_sizes;
  return sizes;
}

std::string in_words(const std::map<std::string, Sizes>& sizes, const std::string& name) {
  const auto found = sizes.find(name);
  return found == sizes.end() ? "nothing" : text("parameters of shape ", at::IntArrayRef(found->second));
}

void check_same_parameters(const model::Model& form, const model::Model& whole) {
  const std::map<std::string, Sizes> found = sizes_in(form), expected = sizes_in(whole);
  std::map<std::string, Sizes> names = found;
  names.insert(expected.begin(), expected.end());
  for (const auto& [name, sizes] : names) {
    const std::string has = in_words(found, name), should_have = in_words(expected, name);
    require(has == should_have, "the tensor-parallel form of the model of type ", type_of(whole), " holds ",
            has, " under the name '", name, "', and the whole model ", should_have,
            "; give them the same names, and let parameter_boxes() tell sizes of the whole");
  }
}

/// Copies dtype and values of each part from the whole model.
void take_values(model::Model& form, const model::Model& whole) {
  const at::NoGradGuard no_grad;
  const auto parameters = whole.named_parameters();
  if (!parameters.is_empty()) form.to(parameters.front().value().scalar_type());
  for (const model::ParameterBox& box : model::parameter_boxes(form)) {
    const at::Tensor& from = parameters[box.name];
    model::ParameterBox there = box;
    there.places = box.offsets;
    box.values().copy_(there.part_of(from.detach()));
  }
}

}  // namespace

std::optional<TensorLimits> tensor_limits(const model::Model& whole) {
  if (const auto* own = dynamic_cast<const TensorParallelizable*>(&whole)) return own->tensor_limits();
  const Row* row = find_row(whole);
  return row == nullptr ? std::nullopt : std::optional(row->limits(whole));
}

TensorParallelModel make_tensor_parallel(const model::Model& whole, const TensorParallelOptions& options) {
  const auto make = [&] { return form_of_any(whole, options); };
  const bool deferred = model::is_deferred(whole);
  TensorParallelModel form = deferred ? model::deferred(make) : make();
  require(form.model != nullptr, "the model of type ", type_of(whole),
          " makes no tensor-parallel form: null");
  check_same_parameters(*form.model, whole);
  if (!deferred) take_values(*form.model, whole);
  const auto parameters = whole.named_parameters();
  for (auto& parameter : form.model->named_parameters())
    parameter.value().set_requires_grad(parameters[parameter.key()].requires_grad());
  form.model->train(whole.is_training());
  return form;
}

Fields whole_outputs(const TensorParallelModel& form, const Fields& outputs,
                     const TensorParallelOptions& options) {
  return outputs.map([&](const at::Tensor& output) {
    at::Tensor whole = output;
    if (form.cut_classes > 0) whole = join_parts(whole, -1, form.cut_classes, options.group);
    if (form.cut_tokens > 0)
      whole = join_tokens(whole, 1, {.group = *options.context, .length = form.cut_tokens});
    return whole;
  });
}

Fields own_targets(const TensorParallelModel& form, const Fields& targets,
                   const TensorParallelOptions& options) {
  if (form.cut_tokens == 0) return targets;
  return targets.map([&](const at::Tensor& target) {
    return own_tokens(target, 1, {.group = *options.context, .length = form.cut_tokens});
  });
}

}  // namespace trireme::parallel
