#include "trireme/objective/objective.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/objective/internal/targets.h"

namespace trireme::objective {

const std::vector<Metric>& Objective::metrics() const {
  static const std::vector<Metric> kNone;
  return kNone;
}

at::Tensor Objective::loss(const at::Tensor& /*output*/, const at::Tensor& /*target*/) const {
  throw InvalidArgument("an objective needs a loss(), or a loss_all()");
}

at::Tensor Objective::loss_all(const Fields& outputs, const Fields& targets) const {
  return loss(outputs, targets);
}

double Objective::count(const at::Tensor& target) const { return static_cast<double>(target.size(0)); }

double Objective::count_all(const data::Example& batch) const {
  return batch.target.size() == 1 ? count(batch.target) : static_cast<double>(batch.rows());
}

void Objective::check_target(const at::Tensor& /*target*/, const std::string& /*who*/) const {}

void Objective::check_targets(const Fields& targets, const std::string& who) const {
  if (targets.size() == 1) check_target(targets, who);
}

void Objective::check_output(const at::Tensor& /*output*/, const at::Tensor& /*target*/) const {}

void Objective::check_outputs(const Fields& outputs, const Fields& targets) const {
  if (outputs.size() == 1 && targets.size() == 1) check_output(outputs, targets);
}

void Objective::check_batch(const data::Example& batch, std::span<const std::int64_t> indices) const {
  check_rows(batch, indices);
}

std::int64_t Objective::num_outputs(const data::DataSource& data) const {
  return std::max<std::int64_t>(data.num_classes, 1);
}

}  // namespace trireme::objective
