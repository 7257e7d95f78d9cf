#pragma once
// Reduces the ranks' tensors in the order of their rows, so that every rank that does it gets the same bits.

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trireme::comm {

/// `result` becomes the reduction over the first dim of `rows`; an average is one.
void reduce_rows(const at::Tensor& rows, const c10d::ReduceOp& op, at::Tensor result);

}  // namespace trireme::comm
