#include "trireme/objective/objective.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/objective/internal/targets.h"

namespace trireme::objective {

const std::vector<Metric>& Objective::metrics() const {
  static const std::vector<Metric> kNone;
  return kNone;
}

void Objective::check_target(const at::Tensor& /*target*/, const std::string& /*who*/) const {}

void Objective::check_output(const at::Tensor& /*output*/, const at::Tensor& /*target*/) const {}

void Objective::check_batch(const data::Example& batch, std::span<const std::int64_t> indices) const {
  check_rows(batch, indices);
}

std::int64_t Objective::num_outputs(const data::DataSource& data) const {
  return std::max<std::int64_t>(data.num_classes, 1);
}

}  // namespace trireme::objective
