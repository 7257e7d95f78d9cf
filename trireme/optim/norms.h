#pragma once
// 2-norms without overflow. Squares overflow in the tensors' types (from 256 in fp16, from 1.8e19 in f32 and
// bf16), which would make an infinite norm of finite numbers. Where libtorch's kernels give a finite number,
// the bits are theirs. Pure; thread-safe.

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
