#pragma once
// Tensors as arguments and results of remote calls (rpc/function.h); autograd.h includes it. Dense ones of
// any dtype. Bytes are not copied on either side where a call has one tensor alone; do not change it until
// the call is answered. A tensor of another device is copied to the host before, which gradients follow, and
// arrives on the CPU: the function there chooses its device.

#include <ATen/core/Tensor.h>

#include "trireme/wire/fields.h"

template <>
struct trireme::wire::Field<at::Tensor> {
  /// Throws InvalidArgument for tensors that are not dense.
  static void write(FieldWriter& writer, const at::Tensor& tensor);
  static void read(FieldReader& reader, at::Tensor& tensor);
};
