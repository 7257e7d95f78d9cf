#pragma once
// For data sets that have the target of a sample without its input.

#include <cstdint>
#include <functional>
#include <span>

#include "trireme/batch/fields.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

using TargetOf = std::function<Fields(std::int64_t index)>;

/// The targets of a batch, as Dataset::get_batch stacks them. Throws DataError where they are not alike.
Fields stacked_targets(std::span<const std::int64_t> indices, const TargetOf& target_of);

/// That of one sample, without a batch dim.
Fields target_of(const Dataset& dataset, std::int64_t index);

}  // namespace trireme::data
