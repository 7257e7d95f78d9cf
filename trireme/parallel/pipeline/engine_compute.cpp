// What the actions of a pipeline's rank compute.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/parallel/pipeline/internal/engine.h"

namespace trireme::parallel {

using schedule::ActionKind;

/// Shows the version of the weights that the micro-batch uses while it computes.
void Engine::use_version(const Action& action, const std::function<void()>& compute) {
  if (!versions_) return compute();
  const int version = version_of_[static_cast<std::size_t>(action.microbatch)];
  versions_->show(version);
  compute();
  if (action.kind == ActionKind::kBackward)
    staleness_.updates = std::max(staleness_.updates, versions_->version() - version);
  versions_->release(version);
}

void Engine::forward(const Action& action) {
  const int stage = action.stage, next = stage + 1;
  const at::Tensor input = stage == 0 ? microbatch(action).input : take(inputs_, place_of(action));
  at::Tensor output;
  use_version(action, [&] { output = local(stage).forward(action.microbatch, input); });
  int live = 0;
  for (const auto& [number, each] : mine_) live += each.num_live();
  peak_live_ = std::max(peak_live_, live);
  if (stage == last_stage()) {
    losses_.emplace_back(microbatch(action).weight, output);
    return;
  }
  check_output(action, output);
  if (is_local(next, action.microbatch)) {
    inputs_[{next, action.microbatch}] = {.tensor = output};
  } else {
    outputs_[place_of(action)] = output;
  }
}

void Engine::backward(const Action& action) {
  const int stage = action.stage, before = stage - 1;
  const at::Tensor of_output =
      stage == last_stage() ? at::full({}, microbatch(action).weight * feed_.gradient_scale, at::kFloat)
                            : take(output_gradients_, place_of(action));
  at::Tensor of_input;
  use_version(action, [&] {
    of_input = action.kind == ActionKind::kBackwardInput
                   ? local(stage).backward_input(action.microbatch, of_output)
                   : local(stage).backward(action.microbatch, of_output);
  });
  if (stage == 0) return;
  if (!of_input.defined()) {
    throw InvalidArgument(text("the loss of micro-batch ", action.microbatch,
                               " does not depend on the input of stage ", stage,
                               ": the stages before it would learn nothing"));
  }
  if (is_local(before, action.microbatch)) {
    output_gradients_[{before, action.microbatch}] = {.tensor = of_input};
  } else {
    input_gradients_[place_of(action)] = of_input;
  }
}

/// The last one of a step begins the reduction over the stage's replicas; those before add up locally.
void Engine::weight_gradient(const Action& action, const std::function<void()>& compute) {
  const bool is_last = --num_left_.at(action.stage) == 0;
  const auto replica = replicas_.find(action.stage);
  if (replica == replicas_.end()) {
    if (!is_empty(action)) compute();
  } else if (!is_last) {
    const auto no_reduction = replica->second.no_sync();
    if (!is_empty(action)) compute();
  } else if (is_empty(action)) {
    replica->second.reduce_without_backward();
  } else {
    compute();
  }
  done_.push_back(action.microbatch);
}

void Engine::update() {
  num_steps_left_ = mine_.size();
  // Updates in the middle come for as long as the feed goes on. What the last one was done with has been
  // sent.
  for (const int number : done_before_) batch_.erase(number);
  done_before_ = std::exchange(done_, {});
  for (auto& [number, replica] : replicas_) replica.finish_reduction();
  tied_.add_gradients();
  if (!versions_) {
    if (update_) update_();
    return;
  }
  // The ranks of a stage have a micro-batch each: their sum becomes the mean.
  const auto stage = static_cast<std::size_t>(mine_.begin()->first);
  versions_->begin_update(1 / static_cast<double>(stages_[stage].ranks.size()));
  staleness_.versions = std::max(staleness_.versions, versions_->num_kept());
  if (update_) update_();
  versions_->end_update();
}

void Engine::check_output(const Action& action, const at::Tensor& output) {
  const auto& announced = shapes_.of(microbatch(action).input);
  const TensorSpec& expected = announced[static_cast<std::size_t>(action.stage)];
  const Pipeline::StageLayers& layers = stages_[static_cast<std::size_t>(action.stage)];
  require(spec_of(output) == expected, "stage ", action.stage, " (layers ", layers.first, " to ",
          layers.last - 1, ") returns ", to_text(spec_of(output)), " for micro-batch ", action.microbatch,
          ", its first forward for an input of this shape returned ", to_text(expected));
  require(output.is_floating_point(), "stage ", action.stage, " returns ", to_text(expected),
          ": only floating-point tensors have gradients to send back; cut the model elsewhere");
}

at::Tensor Engine::loss_of(const at::Tensor& output, int number) {
  const at::Tensor loss = feed_.loss(output, microbatch(number).target);
  require(loss.numel() == 1, "the loss of a micro-batch has to be one number, found ",
          to_text(spec_of(loss)));
  return loss.reshape({});
}

/// Through the first rank of each stage.
at::Tensor Engine::evaluate(const at::Tensor& input) {
  if (versions_) versions_->show_newest();
  at::Tensor values = input;
  const std::vector<TensorSpec>& outputs = shapes_.of(input);
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const int rank = stages_[stage].ranks.front();
    if (rank != group_.rank()) continue;
    if (stage > 0 && stages_[stage - 1].ranks.front() != rank) {
      const TensorSpec& spec = outputs[stage - 1];
      values = at::zeros(spec.sizes, at::TensorOptions(spec.type));
      group_.recv(values, stages_[stage - 1].ranks.front());
    }
    values = local(static_cast<int>(stage)).evaluate(values).contiguous();
    const bool is_last = stage + 1 == stages_.size();
    if (!is_last && stages_[stage + 1].ranks.front() != rank)
      group_.send(values, stages_[stage + 1].ranks.front());
    if (is_last) return values;
  }
  return {};
}

}  // namespace trireme::parallel
