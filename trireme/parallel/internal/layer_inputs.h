#pragma once
// Inputs of layers whose forward is recorded: a layer may change them in place, and that has to be noticed.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/batch/fields.h"

namespace trireme::parallel {

/// The same memory as a tensor that is neither a leaf nor a view of one, so that a layer may change it in
/// place; `input` itself where it needs no gradient.
at::Tensor entered(const at::Tensor& input);

/// Counts of the changes in place so far, one for each tensor.
std::vector<std::int64_t> versions_of(const Fields& tensors);

}  // namespace trireme::parallel
