#include "trireme/parallel/pipeline/internal/output_shapes.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace trireme::parallel {

const std::vector<TensorSpec>& OutputShapes::of(const at::Tensor& input) {
  const std::vector<std::int64_t> shape = input.sizes().vec();
  if (const auto known = known_.find(shape); known != known_.end()) return known->second;
  return known_.emplace(shape, ask(input)).first->second;
}

bool OutputShapes::is_on(std::size_t stage, int rank) const {
  const std::vector<int>& ranks = stages_[stage].ranks;
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<TensorSpec> OutputShapes::ask(const at::Tensor& input) {
  const int me = group_.rank();
  std::vector<TensorSpec> outputs(stages_.size());
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (!is_on(stage, me)) continue;
    if (stage > 0 && !is_on(stage - 1, me)) outputs[stage - 1] = receive_spec(group_, first_rank(stage - 1));
    if (stage + 1 == stages_.size()) break;
    const at::Tensor sample =
        stage == 0 ? input : at::zeros(outputs[stage - 1].sizes, outputs[stage - 1].type);
    outputs[stage] = spec_of(mine_.at(static_cast<int>(stage)).evaluate(sample));
    if (me != first_rank(stage)) continue;
    for (const int rank : stages_[stage + 1].ranks) {
      if (!is_on(stage, rank)) send_spec(group_, outputs[stage], rank);
    }
  }
  return outputs;
}

}  // namespace trireme::parallel
