#pragma once
// Where a chain of layers is cut into parts. Pure.

#include <vector>

#include "trireme/model/layer.h"

namespace trireme::model {

/// First layer of each part but the first. The largest number of parameters in a part is as small as
/// contiguous parts allow, and the other parts are even. No part is empty. Throws InvalidArgument: more parts
/// than layers.
std::vector<int> cuts_by_parameters(const std::vector<Layer>& layers, int num_parts);

}  // namespace trireme::model
