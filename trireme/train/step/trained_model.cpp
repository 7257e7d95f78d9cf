#include "trireme/train/step/trained_model.h"

#include "trireme/train/step/internal/form_loss.h"

namespace trireme::train {

at::Tensor TrainedModel::loss_of(const Fields& outputs, const Fields& targets) const {
  return is_model_parallel() ? loss_of_form(*objective, form, form_options, {outputs, targets})
                             : objective->loss_all(outputs, targets);
}

}  // namespace trireme::train
