#include "trireme/parallel/pipeline/internal/output_shapes.h"

#include <ATen/ops/zeros.h>

namespace trireme::parallel {

const std::vector<TensorSpec>& OutputShapes::of(const at::Tensor& input) {
  const std::vector<std::int64_t> shape = input.sizes().vec();
  if (const auto known = known_.find(shape); known != known_.end()) return known->second;
  return known_.emplace(shape, ask(input)).first->second;
}

std::vector<TensorSpec> OutputShapes::ask(const at::Tensor& input) {
  std::vector<TensorSpec> outputs(stages_.size());
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (!is_local(stage)) continue;
    if (stage > 0 && !is_local(stage - 1)) outputs[stage - 1] = receive_spec(group_, rank_of(stage - 1));
    if (stage + 1 == stages_.size()) break;
    const at::Tensor sample =
        stage == 0 ? input : at::zeros(outputs[stage - 1].sizes, outputs[stage - 1].type);
    outputs[stage] = spec_of(mine_.at(static_cast<int>(stage)).evaluate(sample));
    if (!is_local(stage + 1)) send_spec(group_, outputs[stage], rank_of(stage + 1));
  }
  return outputs;
}

}  // namespace trireme::parallel
