#pragma once
// The dtypes that gloo carries. It finds others on its own threads, when the operation has been issued.

#include <ATen/core/Tensor.h>

namespace trireme::comm {

/// Throws InvalidArgument for a tensor that gloo cannot send.
void check_gloo_dtype(const at::Tensor& tensor);

}  // namespace trireme::comm
