#pragma once
// The parts of tensors that the ranks of a tensor-parallel group hold, for optimizers that look at whole
// ones.

#include <memory>
#include <optional>

#include "trireme/comm/group.h"
#include "trireme/optim/tensor_parts.h"
#include "trireme/train/step/shard_specs.h"

namespace trireme::train {

/// Null where no layer is cut, or the optimizer does not need it: it uses single elements. `held` may be
/// destroyed. Collective over the group.
std::shared_ptr<const optim::TensorParts> parts_of_tensors(const std::optional<comm::Group>& tensor,
                                                           const ShardSpecs& held,
                                                           const std::string& optimizer);

}  // namespace trireme::train
