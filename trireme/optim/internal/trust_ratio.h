#pragma once
// The layer-wise step length of LARS and LAMB. Where a norm is 0, for instance at a tensor that begins as
// zeros, the papers divide by or multiply with zero; as in the implementations of their authors the ratio
// is 1.

#include "trireme/optim/update_rule.h"

namespace trireme::optim {

/// Per tensor coefficient * |value| / (|update| + weight_decay * |value|) as a tensor without dims on its
/// device, 1 where either norm is 0; norms are those of whole tensors. Nothing is read back to the host.
/// Collective over the ranks that hold other parts of them.
TensorVector trust_ratios(const UpdateLists& lists, const TensorVector& updates, double coefficient,
                          double weight_decay);

}  // namespace trireme::optim
