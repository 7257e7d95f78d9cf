#pragma once
// What the memory of a rank is used for while it trains, beside what formulas say of it.

#include <cstdint>
#include <string>

#include "trireme/base/memory_ledger.h"
#include "trireme/comm/context.h"
#include "trireme/train/parallel_plan.h"

namespace trireme::train {

struct MemoryReport {
  MemoryUse at_update;  ///< before the newest update: all gradients are there, and no activations
  MemoryUse at_peak;    ///< when most was there, the first step left out
  MemoryUse formula;    ///< of weights, gradients and optimizer; 0 for the other kinds
  int rank = 0;
};

/// Bytes of the state of a rank whose stages have parameters of so many bytes, all of which learn
/// (Rajbhandari et al., arXiv 1910.02054, section 5): what the plan's replicas share out is divided by their
/// number, and with `common_weights` the parameters are, too. Buckets, padding and what is gathered for use
/// come on top.
MemoryUse state_by_formula(const ParallelPlan& plan, std::int64_t parameter_bytes, bool common_weights);

/// The report of the rank with the highest peak. Collective.
MemoryReport largest(comm::Context& context, const MemoryReport& mine);

/// "weights 1.2 MiB, gradients 1.2 MiB, ...": kinds without bytes are left out.
std::string describe(const MemoryUse& use);

}  // namespace trireme::train
