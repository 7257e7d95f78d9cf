#include "trireme/parallel/pipeline/internal/output_shapes.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/model/untouched.h"

namespace trireme::parallel {
namespace {

Fields zeros_like(const std::vector<TensorSpec>& specs, c10::Device device) {
  Fields tensors;
  for (const TensorSpec& spec : specs) {
    const auto options = at::device(device).dtype(spec.type).memory_format(spec.format());
    tensors.add(spec.name, at::empty(spec.sizes, options).zero_());
  }
  return tensors;
}

/// A copy, because a layer may change its input in place and the batch must not change.
at::Tensor copied(const at::Tensor& tensor) { return tensor.clone(); }

std::vector<std::int64_t> key_of(const Fields& inputs) {
  std::vector<std::int64_t> key;
  for (const auto& [name, tensor] : inputs) {
    key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
    key.push_back(-1);
  }
  return key;
}

/// The outputs of the stage for these inputs. A single floating-point tensor always gets its gradient sent
/// back. For several, a second forward finds the ones that need a gradient.
EdgeSpec edge_behind(const Stage& stage, const Fields& inputs,
                     const std::vector<std::size_t>& without_gradient) {
  const model::Untouched untouched(stage.layers());
  const Fields outputs = stage.evaluate(inputs);
  EdgeSpec edge{.tensors = specs_of(outputs)};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs.at(i).is_floating_point()) edge.without_gradient.push_back(i);
  }
  if (outputs.size() - edge.without_gradient.size() > 1)
    edge.without_gradient = stage.outputs_without_gradient(inputs, without_gradient);
  return edge;
}

}  // namespace

void OutputShapes::learn(const Fields& inputs) {
  std::vector<std::int64_t> key = key_of(inputs);
  if (!known_.contains(key)) known_.emplace(std::move(key), ask(inputs));
}

const std::vector<EdgeSpec>& OutputShapes::of(const Fields& inputs) const {
  const auto known = known_.find(key_of(inputs));
  if (known != known_.end()) return known->second;
  throw InvalidArgument(
      text("the inputs of a micro-batch are ", batch::to_text(inputs),
           ", sizes that the pipeline was not told of when it was started; in an asynchronous pipeline all "
           "micro-batches have sizes that are known ahead"));
}

bool OutputShapes::is_on(std::size_t stage, int rank) const {
  const std::vector<int>& ranks = stages_[stage].ranks;
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<EdgeSpec> OutputShapes::ask(const Fields& inputs) {
  const int me = group_.rank();
  std::vector<EdgeSpec> outputs(stages_.size());
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (!is_on(stage, me)) continue;
    if (stage > 0 && !is_on(stage - 1, me)) outputs[stage - 1] = receive_spec(group_, first_rank(stage - 1));
    if (stage + 1 == stages_.size()) break;
    const EdgeSpec before = stage == 0 ? EdgeSpec() : outputs[stage - 1];
    const std::shared_ptr<void> memory = weights_.at(static_cast<int>(stage))->lend();
    outputs[stage] = within_stage(static_cast<int>(stage), [&] {
      return edge_behind(mine_.at(static_cast<int>(stage)),
                         stage == 0 ? inputs.map(copied) : zeros_like(before.tensors, device_),
                         before.without_gradient);
    });
    if (me != first_rank(stage)) continue;
    for (const int rank : stages_[stage + 1].ranks) {
      if (!is_on(stage, rank)) send_spec(group_, outputs[stage], rank);
    }
  }
  return outputs;
}

}  // namespace trireme::parallel
