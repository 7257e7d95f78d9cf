#include "trireme/parallel/pipeline/internal/output_shapes.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/model/untouched.h"

namespace trireme::parallel {
namespace {

model::Tensors zeros_like(const std::vector<TensorSpec>& specs, c10::Device device) {
  model::Tensors tensors;
  for (const auto& [sizes, type] : specs) tensors.push_back(at::zeros(sizes, at::device(device).dtype(type)));
  return tensors;
}

/// What the stage makes of the inputs. A single floating-point tensor always has its gradient sent back;
/// which of several need one is asked for in a second forward.
EdgeSpec edge_behind(const Stage& stage, const model::Tensors& inputs,
                     const std::vector<std::size_t>& without_gradient) {
  const model::Untouched untouched(stage.layers());
  const model::Tensors outputs = stage.evaluate(inputs);
  EdgeSpec edge{.tensors = specs_of(outputs)};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].is_floating_point()) edge.without_gradient.push_back(i);
  }
  if (outputs.size() - edge.without_gradient.size() > 1)
    edge.without_gradient = stage.outputs_without_gradient(inputs, without_gradient);
  return edge;
}

}  // namespace

const std::vector<EdgeSpec>& OutputShapes::of(const at::Tensor& input) {
  const std::vector<std::int64_t> shape = input.sizes().vec();
  if (const auto known = known_.find(shape); known != known_.end()) return known->second;
  return known_.emplace(shape, ask(input)).first->second;
}

bool OutputShapes::is_on(std::size_t stage, int rank) const {
  const std::vector<int>& ranks = stages_[stage].ranks;
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<EdgeSpec> OutputShapes::ask(const at::Tensor& input) {
  const int me = group_.rank();
  std::vector<EdgeSpec> outputs(stages_.size());
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (!is_on(stage, me)) continue;
    if (stage > 0 && !is_on(stage - 1, me)) outputs[stage - 1] = receive_spec(group_, first_rank(stage - 1));
    if (stage + 1 == stages_.size()) break;
    const EdgeSpec before = stage == 0 ? EdgeSpec() : outputs[stage - 1];
    outputs[stage] = edge_behind(mine_.at(static_cast<int>(stage)),
                                 stage == 0 ? model::Tensors{input} : zeros_like(before.tensors, device_),
                                 before.without_gradient);
    if (me != first_rank(stage)) continue;
    for (const int rank : stages_[stage + 1].ranks) {
      if (!is_on(stage, rank)) send_spec(group_, outputs[stage], rank);
    }
  }
  return outputs;
}

}  // namespace trireme::parallel
