#pragma once
// The current step: the state that a trainer and the parts of its step (internal/step_part.h) read and
// change. Values.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "trireme/train/step/step_reports.h"

namespace trireme::train {

struct Step {
  StepReport report = {};
  bool logs = false;         ///< a line of metrics is written for it
  bool is_observed = false;  ///< Trainer::on_gradients() has an observer
  /// f32, no dims, on the device: 1 where the update is left out, else 0. The host does not know it yet.
  /// Undefined: report.skipped has it.
  at::Tensor leave_out = {};
  bool wants_norm = false;  ///< a part reads report.grad_norm
  at::Tensor grad_norm =
      {};  ///< 2-norm of all gradients before clipping, f32 without dims; undefined: not computed
  /// The divisor of the current batch's losses: an asynchronous pipeline takes one during the step before its
  /// own. Unset when a batch arrives: the count of the global batch.
  std::optional<double> count = std::nullopt;
  /// Complete the report when the device's numbers are on the host: the loss is there before those of parts.
  Completions completions = {};
};

/// Totals of this rank since its trainer was made.
struct StepCounters {
  double comm_wait_s = 0;                 ///< seconds of waiting for other ranks
  std::int64_t sent_bytes = 0;            ///< gradients and gathered weights, to replicas, as if in a ring
  std::int64_t sent_to_sites_bytes = 0;   ///< weights and gradients, to other sites, as if in a ring
  std::int64_t sent_to_stages_bytes = 0;  ///< activations and their gradients, to other stages
};

}  // namespace trireme::train
