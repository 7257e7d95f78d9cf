// How good the model of a trainer is, and what all ranks have to have done for that.
#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/parallel/tensor/joint_pass.h"
#include "trireme/train/internal/check.h"
#include "trireme/train/internal/serving.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

void Trainer::meet() {
  if (outer_steps_) {
    const telemetry::OwnWork work(context_.status(), "waiting for the models of all sites");
    outer_steps_->meet();
  }
  if (plan_.by_need()) optimizer_->arrive();
  if (!plan_.served()) return;
  context_.status().set_action(text("step ", step_, ": waiting for the steps of all ranks"));
  optimizer_->meet();
  share_buffers(context_.world(), pipeline_.buffers());
}

void Trainer::bring_state() {
  meet();
  if (outer_steps_) outer_steps_->settle();
  optimizer_->bring_state();
}

Evaluation Trainer::evaluate() {
  for (const auto& prepare : before_changes_) prepare();
  meet();
  const model::ConvolutionScope convolutions_of_it(convolutions());
  context_.status().set_action(text("step ", step_, ": evaluation"));
  const telemetry::TraceScope span(telemetry::main_of(context_.trace()), "evaluation", "evaluation",
                                   {"step", step_});
  require(data_.test != nullptr, "data set ", data_.name, " has no second split to evaluate on");
  key_generators("evaluation");
  const auto averages = use_averages();
  const auto of_all_sites =
      outer_steps_ ? std::make_unique<parallel::OuterSteps::Shown>(*outer_steps_) : nullptr;
  if (averages) pipeline_.weights_changed();
  const int num_replicas = groups_.replicas ? groups_.replicas->size() : 1;
  const parallel::JointPass of_layers(form_options_.group),
      of_sequences(groups_.context.value_or(context_.self()));
  const auto evaluate_all = [&] {
    return train::evaluate([this](const Fields& inputs) { return evaluated(inputs); },
                           {.dataset = *data_.test,
                            .part = data::slice_of(data_.test->size(), replica(), num_replicas),
                            .batch = plan_.samples_of_microbatch(),
                            .needed = needed(),
                            .longest_part = (data_.test->size() + num_replicas - 1) / num_replicas,
                            .sit_out = [this] { pipeline_.sit_out_evaluation(); }},
                           *objective_, context_);
  };
  const Evaluation evaluation =
      within([this] { return text("the evaluation after step ", step_); }, evaluate_all);
  if (averages) pipeline_.weights_changed();
  learning_rate_->observe(evaluation.loss);
  return evaluation;
}

Fields Trainer::evaluated(const Fields& inputs) {
  Fields outputs = pipeline_.evaluate(pipeline_.has_first_stage() ? inputs.on(device_) : inputs);
  if (!plan_.has_form() || !outputs.at(0).defined()) return outputs;
  outputs = parallel::whole_outputs(form_, outputs, form_options_);
  return speaks() ? outputs : Fields(at::Tensor());
}

}  // namespace trireme::train
