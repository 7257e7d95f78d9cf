#pragma once
// What tests of layers that are computed again share.

#include <ATen/ops/randn.h>

#include <functional>

#include "trireme/batch/fields.h"

namespace trireme::test {

using Forward = std::function<Fields(const Fields&)>;

/// Random numbers of which gradients are asked for.
inline at::Tensor learning(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }

}  // namespace trireme::test
