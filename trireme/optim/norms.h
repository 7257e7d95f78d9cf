#pragma once
// 2-norms that are as large as they are: the squares that they are the roots of go beyond the range of the
// tensors (from 256 on in fp16, from 1.8e19 on in f32 and bf16), and a sum that went would be an infinite
// norm of numbers that are none. Bits are those of libtorch's kernels wherever these end with a number. Pure;
// thread-safe.

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::optim {

/// One number without dims for each tensor, on its device, which is not waited for; of half precision in f32.
std::vector<at::Tensor> norms_of(const std::vector<at::Tensor>& tensors);

/// In f64 on the host, the sum of the squares of their norms; 0 for none. One read of the device for all of
/// them.
double sum_of_squared_norms(const std::vector<at::Tensor>& tensors);

/// In f64, the norm of all tensors that these (one dim) are the norms of.
at::Tensor norm_of_norms(const at::Tensor& norms);

}  // namespace trireme::optim
