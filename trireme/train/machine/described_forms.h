#pragma once
// The costs that a search for plans needs (planner/plan_search.h), of a machine that is described.

#include <cstdint>

#include "trireme/train/config/run_config.h"
#include "trireme/train/estimate/measurements.h"
#include "trireme/train/machine/machine.h"

namespace trireme::train {

/// The configuration as it is planned for a described machine: without train.device, which would have to be
/// here.
RunConfig on_described_machine(const RunConfig& config);

/// Forms of the configuration's model whose sizes divide the ranks. `vocabulary`: tokens of the model. Throws
/// InvalidArgument: a model other than gpt, a precision without a peak in the description, or more ranks than
/// the machine has. Also a number of ranks that does not fill whole hosts. Pure.
MeasuredForms described_forms(const RunConfig& config, int world_size, const Machine& machine,
                              std::int64_t vocabulary);

}  // namespace trireme::train
