#include "trireme/train/step/internal/form_loss.h"

#include "trireme/parallel/tensor/cross_entropy.h"

namespace trireme::train {

at::Tensor loss_of_form(const objective::Objective& objective, const parallel::TensorParallelModel& form,
                        const parallel::TensorParallelOptions& options, const OutputsAndTargets& of) {
  const auto of_classes = objective.class_loss();
  if (!of_classes) return objective.loss_all(parallel::whole_outputs(form, of.outputs, options), of.targets);
  const Fields own = parallel::own_targets(form, of.targets, options);
  if (form.cut_classes == 0) return objective.loss_all(of.outputs, own);
  return parallel::vocabulary_cross_entropy(of.outputs.at(0), own.at(0), options.group,
                                            {.vocabulary = form.cut_classes,
                                             .label_smoothing = of_classes->label_smoothing,
                                             .ignored_classes = of_classes->ignored_classes});
}

}  // namespace trireme::train
