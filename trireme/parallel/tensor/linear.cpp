#include "trireme/parallel/tensor/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/tensor/internal/boxes.h"

namespace trireme::parallel {
namespace {

DimCut checked(const char* who, std::int64_t size, const ParallelLinearOptions& options) {
  require(options.in >= 1 && options.out >= 1, "a linear layer from ", options.in, " to ", options.out,
          " features; expected at least 1 of each");
  const DimCut cut{.size = size, .parts = options.parts, .unit = options.unit};
  cut.check(who);
  return cut;
}

std::int64_t size_here(const DimCut& cut, const comm::Group& group) {
  return cut.size_on(group.rank(), group.size());
}

void check_features(const char* who, const at::Tensor& input, std::int64_t expected,
                    const comm::Group& group) {
  require(input.dim() >= 1 && input.size(-1) == expected, who, " on rank ", group.rank(), " of group '",
          group.name(), "' is given a tensor of shape ", input.sizes(), "; expected ", expected,
          " features in its last dim");
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(comm::Group group, const ParallelLinearOptions& options)
    : group_(std::move(group)),
      options_(options),
      cut_(checked("the output of a column-parallel linear layer", options.out, options)) {
  const std::int64_t out = size_here(cut_, group_);
  weight_ = register_parameter("weight", at::empty({out, options.in}));
  if (options.bias) bias_ = register_parameter("bias", at::empty({out}));
  model::initialise(*this, /*seed=*/0);
}

at::Tensor ColumnParallelLinear::features_of(const at::Tensor& input) const {
  return at::linear(input, weight_, bias_);
}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& input) {
  check_features("a column-parallel linear layer", input, options_.in, group_);
  return features_of(copy_to_ranks(input, group_));
}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& part, const Sequence& sequence) {
  check_features("a column-parallel linear layer", part, options_.in, group_);
  return features_of(gather_sequence(part, sequence, group_));
}

std::vector<model::ParameterBox> ColumnParallelLinear::boxes() const {
  auto boxes = boxes_of("weight", weight_, {options_.out, options_.in}, 0, cut_, group_);
  if (!options_.bias) return boxes;
  for (auto& box : boxes_of("bias", bias_, {options_.out}, 0, cut_, group_)) boxes.push_back(std::move(box));
  return boxes;
}

RowParallelLinear::RowParallelLinear(comm::Group group, const ParallelLinearOptions& options)
    : group_(std::move(group)),
      options_(options),
      cut_(checked("the input of a row-parallel linear layer", options.in, options)) {
  weight_ = register_parameter("weight", at::empty({options.out, size_here(cut_, group_)}));
  if (options.bias) bias_ = register_parameter("bias", at::empty({options.out}));
  model::initialise(*this, /*seed=*/0);
}

at::Tensor RowParallelLinear::term_of(const at::Tensor& features) const {
  check_features("a row-parallel linear layer", features, size_here(cut_, group_), group_);
  return at::linear(features, weight_);
}

at::Tensor RowParallelLinear::forward(const at::Tensor& features) {
  const at::Tensor sum = sum_over_ranks(term_of(features), group_);
  return options_.bias ? sum + bias_ : sum;
}

at::Tensor RowParallelLinear::forward(const at::Tensor& features, const Sequence& sequence) {
  const at::Tensor part = sum_to_sequence(term_of(features), sequence, group_);
  return options_.bias ? part + copy_to_ranks(bias_, group_) : part;
}

std::vector<model::ParameterBox> RowParallelLinear::boxes() const {
  return boxes_of("weight", weight_, {options_.out, options_.in}, 1, cut_, group_);  // the bias is replicated
}

}  // namespace trireme::parallel
