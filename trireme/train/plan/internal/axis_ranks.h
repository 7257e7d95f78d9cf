#pragma once
// How many ranks a configuration puts along the axes of base/mesh_axes.h. Pure.

#include <cstdint>

#include "trireme/base/mesh_axes.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// The value of the axis' key. Of the axis that has the rest of the ranks it may be 0, and counts all
/// replicas.
std::int64_t ranks_along(const AxisRow& row, const RunConfig& config);

/// The product over all axes but the one that has the rest, and the one of that key.
std::int64_t ranks_of_other_axes(const RunConfig& config, std::string_view key = "");

}  // namespace trireme::train
