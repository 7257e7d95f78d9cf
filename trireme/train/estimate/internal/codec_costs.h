#pragma once
// Time of exchanges of gradients through a codec (parallel.compression), measured with the codec's own hook.

#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/comm_hook.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/estimate/measurements.h"

namespace trireme::train {

/// Median seconds of exchanges of copies of `gradients`, tensors of one dtype and device, after one that does
/// not count. The hook's state begins empty. Collective over `group`. Throws InvalidArgument: the codec
/// rejects them.
double exchange_s(const parallel::CompressionOptions& options, const optim::NamedTensors& gradients,
                  comm::Group group);

/// Costs of the configuration's codec; if it has none, of those that a planner names. Codecs that reject such
/// gradients are left out. Empty for a group of one rank. Collective over `group`.
std::vector<CodecCost> measure_codecs(const RunConfig& config, const comm::Group& group, c10::Device device);

}  // namespace trireme::train
