#pragma once
// Common parts of the tests of recomputed layers.

#include <ATen/ops/randn.h>

#include <functional>

#include "trireme/batch/fields.h"

namespace trireme::test {

using Forward = std::function<Fields(const Fields&)>;

/// Random numbers with gradients.
inline at::Tensor learning(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }

}  // namespace trireme::test
