#pragma once
// Memory of a rank in training by use, with its values by formula.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/memory_ledger.h"
#include "trireme/comm/context.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

struct MemoryReport {
  MemoryUse at_update;  ///< before the newest update: all gradients are there, and no activations
  MemoryUse at_peak;    ///< when most was there, the first step left out
  MemoryUse formula;    ///< of weights, gradients and optimizer; 0 for the other kinds
  MemoryUse device_at_update = {},
            device_at_peak = {};     ///< the same on the rank's device; the others: the host's
  std::int64_t offloaded_bytes = 0;  ///< of offloaded tensors
  int rank = 0;
};

/// A parameter of a rank's stages.
struct ParameterBytes {
  std::int64_t exact = 0;    ///< as it is updated
  std::int64_t working = 0;  ///< of a rounded copy that is computed with; 0: there is none
  bool is_kept = false;      ///< gathered between uses
};

/// Whether replicas have weights in one memory.
enum class WeightsMemory { kOwn, kCommon };

/// Bytes of the state of a rank whose stages have these parameters, all of which are trainable (Rajbhandari
/// et al., arXiv 1910.02054, section 5). State that the plan shards over replicas is divided by their number.
/// So are weights in shared memory. Of offloaded state only the parts that are fetched at once count.
/// Buckets, padding and gathered parameters come on top.
MemoryUse state_by_formula(const ParallelPlan& plan, const std::vector<ParameterBytes>& parameters,
                           WeightsMemory memory);

/// The report of the rank with the highest peak, of host and device together. Collective.
MemoryReport largest(comm::Context& context, const MemoryReport& mine);

/// "weights 1.2 MiB, gradients 1.2 MiB, ...": kinds without bytes are left out.
std::string describe(const MemoryUse& use);

}  // namespace trireme::train
