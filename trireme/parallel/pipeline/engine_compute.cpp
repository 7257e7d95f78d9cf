// The computations of the actions of a pipeline's rank.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/parallel/pipeline/internal/engine.h"

namespace trireme::parallel {

using schedule::ActionKind;

const EdgeSpec& Engine::edge_behind(int stage, int number) {
  return shapes_.of(microbatch(number).input)[static_cast<std::size_t>(stage)];
}

void Engine::forward(const Action& action) {
  const int stage = action.stage, next = stage + 1;
  const bool is_first = stage == 0;
  const Fields inputs = is_first ? microbatch(action).input : take(inputs_, place_of(action));
  Fields outputs = local(stage).forward(
      action.microbatch, inputs,
      is_first ? std::vector<std::size_t>{} : edge_behind(stage - 1, action.microbatch).without_gradient);
  int live = 0;
  for (const auto& [number, each] : mine_) live += each.num_live();
  peak_live_ = std::max(peak_live_, live);
  if (stage == last_stage()) {
    losses_[action.microbatch] = {.weight = microbatch(action).weight, .value = outputs.at(0)};
    return;
  }
  check_outputs(action, outputs);
  if (is_local(next, action.microbatch)) {
    inputs_[{next, action.microbatch}] = {.tensors = std::move(outputs)};
  } else {
    outputs_[place_of(action)] = std::move(outputs);
  }
}

/// One gradient for each output; undefined for outputs without one.
Engine::Tensors Engine::take_output_gradients(const Action& action) {
  if (action.stage == last_stage()) {
    const double weight = microbatch(action).weight;
    if (!stream_.gradient_scale_there.defined())
      return {at::full({}, weight * stream_.gradient_scale, options_of(at::kFloat))};
    return {(stream_.gradient_scale_there * weight).to(options_of(at::kFloat))};
  }
  Tensors arrived = take(output_gradients_, place_of(action));
  const EdgeSpec& edge = edge_behind(action.stage, action.microbatch);
  for (const std::size_t i : edge.without_gradient)
    arrived.insert(arrived.begin() + static_cast<std::ptrdiff_t>(i), at::Tensor());
  return arrived;
}

/// Passes gradients to the previous stage, for inputs that need one. An input that the loss does not depend
/// on gets zeros.
void Engine::give_input_gradients(const Action& action, Tensors gradients) {
  const EdgeSpec& edge = edge_behind(action.stage - 1, action.microbatch);
  const auto is_there = [](const at::Tensor& gradient) { return gradient.defined(); };
  if (edge.without_gradient.size() < edge.tensors.size() &&
      std::none_of(gradients.begin(), gradients.end(), is_there)) {
    throw InvalidArgument(text("the loss of micro-batch ", action.microbatch,
                               " does not depend on the input of stage ", action.stage,
                               ": the stages before it would learn nothing"));
  }
  Tensors wanted;
  for (std::size_t i = 0; i < edge.tensors.size(); ++i) {
    if (!edge.has_gradient(i)) continue;
    const TensorSpec& spec = edge.tensors[i];
    wanted.push_back(gradients[i].defined() ? std::move(gradients[i])
                                            : at::zeros(spec.sizes, options_of(spec.type)));
  }
  const int before = action.stage - 1;
  if (is_local(before, action.microbatch)) {
    output_gradients_[{before, action.microbatch}] = {.tensors = wanted};
  } else {
    input_gradients_[place_of(action)] = wanted;
  }
}

void Engine::backward(const Action& action) {
  const Tensors of_outputs = take_output_gradients(action);
  Tensors of_inputs = local(action.stage).backward(action.microbatch, of_outputs);
  if (action.stage > 0) give_input_gradients(action, std::move(of_inputs));
}

void Engine::backward_input(const Action& action) {
  const Tensors of_outputs = take_output_gradients(action);
  Tensors of_inputs = local(action.stage).backward_input(action.microbatch, of_outputs);
  if (action.stage > 0) give_input_gradients(action, std::move(of_inputs));
}

void Engine::update() {
  num_steps_left_ = mine_.size();
  ++num_updates_;
  // In an asynchronous pipeline, updates come while the stream continues. The micro-batches of the previous
  // update have been sent, and earlier ones belong to other replicas.
  if (!done_before_.empty()) batch_.erase(batch_.begin(), batch_.upper_bound(done_before_.back()));
  done_before_ = std::exchange(done_, {});
  for (const auto& [number, weights] : weights_) weights->finish();
  common_->reduce();
  tied_.add_gradients();
  if (is_asynchronous() && !has_samples_of_update()) zero_grad();
  for (const auto& [number, weights] : weights_) weights->begin_update();
  if (update_) update_();
  for (const auto& [number, weights] : weights_) weights->end_update();
}

/// Whether this rank, or another one with this stage, has samples for the update.
bool Engine::has_samples_of_update() {
  const int holders = static_cast<int>(stages_[static_cast<std::size_t>(mine_.begin()->first)].ranks.size());
  return std::ranges::any_of(done_before_, [&](int mine) {
    const int first = mine / holders * holders;
    for (int m = first; m < first + holders; ++m) {
      if (microbatch(m).rows() > 0) return true;
    }
    return false;
  });
}

void Engine::check_outputs(const Action& action, const Fields& outputs) {
  const EdgeSpec& edge = edge_behind(action.stage, action.microbatch);
  const std::vector<TensorSpec> found = specs_of(outputs);
  const Pipeline::StageLayers& layers = stages_[static_cast<std::size_t>(action.stage)];
  // Messages are only built on failure, because this check runs for every micro-batch.
  const auto refuse = [&](const auto&... what) {
    throw InvalidArgument(text("stage ", action.stage, what...));
  };
  if (found != edge.tensors)
    refuse(" (layers ", layers.first, " to ", layers.last - 1, ") returns ", to_text(found),
           " for micro-batch ", action.microbatch, ", its first forward for an input of this shape returned ",
           to_text(edge.tensors));
  if (edge.without_gradient.size() < outputs.size()) return;
  const auto is_real = [](const batch::Field& output) { return output.tensor.is_floating_point(); };
  if (std::none_of(outputs.begin(), outputs.end(), is_real))
    refuse(" returns ", to_text(found),
           ": only floating-point tensors have gradients to send back; cut the model elsewhere");
  if (local(action.stage).learns(action.microbatch))
    refuse(" returns ", to_text(found),
           ", and none of them needed a gradient when it was asked for shapes: it would learn nothing");
}

at::Tensor Engine::loss_of(const Fields& outputs, int number) {
  const at::Tensor loss = stream_.loss(outputs, microbatch(number).target);
  if (loss.numel() != 1)
    throw InvalidArgument(
        text("the loss of a micro-batch has to be one number, found ", to_text(spec_of(loss))));
  if (stream_.on_loss) stream_.on_loss(number, outputs, loss);
  return loss.reshape({});
}

/// Runs `compute` with the weights of each stage that this rank evaluates.
void Engine::for_each_shown_stage(const std::function<void(std::size_t)>& compute) {
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (stages_[stage].ranks.front() != group_.rank()) continue;
    StageWeights& weights = *weights_.at(static_cast<int>(stage));
    weights.show_newest();
    within_stage(static_cast<int>(stage), [&] { compute(stage); });
    weights.end_showing();
  }
}

/// Evaluates on the first rank of each stage.
Fields Engine::evaluate(const Fields& inputs) {
  Fields values = inputs, outputs = at::Tensor();
  shapes_.learn(inputs);
  const std::vector<EdgeSpec>& edges = shapes_.of(inputs);
  const int me = group_.rank();
  for_each_shown_stage([&](std::size_t stage) {
    if (const int source = stage == 0 ? me : stages_[stage - 1].ranks.front(); source != me) {
      values = {};
      for (const TensorSpec& spec : edges[stage - 1].tensors) {
        at::Tensor value = at::empty(spec.sizes, options_of(spec.type).memory_format(spec.format()));
        at::Tensor room = in_order(value, spec);
        group_.recv(room, source);
        values.add(spec.name, std::move(value));
      }
    }
    values = local(static_cast<int>(stage)).evaluate(values);
    if (stage + 1 == stages_.size()) {
      outputs = values.map([](const at::Tensor& value) { return value.contiguous(); });
      return;
    }
    const int next = stages_[stage + 1].ranks.front();
    if (next == me) return;
    for (std::size_t i = 0; i < values.size(); ++i)
      group_.send(in_order(values.at(i), edges[stage].tensors[i]), next);
  });
  return outputs;
}

}  // namespace trireme::parallel
