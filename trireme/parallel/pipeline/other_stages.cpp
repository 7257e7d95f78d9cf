#include "trireme/parallel/pipeline/internal/other_stages.h"

#include <ATen/core/grad_mode.h>

#include "trireme/parallel/zero/internal/released_parameter.h"

namespace trireme::parallel {

OtherStages::~OtherStages() {
  const at::NoGradGuard no_grad;
  const ReleasedParameterAccess access;
  for (const Taken& each : taken_) each.parameter.set_data(each.values);
}

void OtherStages::take(const std::string& name, const at::Tensor& parameter) {
  if (sizes_on_other_stage(parameter)) return;
  const at::Tensor instead = parameter_of_other_stage(name, parameter);
  if (!instead.defined()) return;
  const at::NoGradGuard no_grad;
  const ReleasedParameterAccess access;
  taken_.push_back({.parameter = parameter, .values = parameter.detach()});
  parameter.set_data(instead);
}

}  // namespace trireme::parallel
