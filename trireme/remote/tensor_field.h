#pragma once
// Tensors as arguments and results of remote calls (rpc/function.h); autograd.h includes it. Dense ones of
// any dtype. Bytes are not copied on either side where a call has one tensor alone; what was sent is not to
// be changed until the call is answered. A tensor of another device is brought to the host before, which
// gradients follow, and arrives on the CPU: the function there knows its device.

#include <ATen/core/Tensor.h>

#include "trireme/wire/fields.h"

template <>
struct trireme::wire::Field<at::Tensor> {
  /// Throws InvalidArgument for what is not dense.
  static void write(FieldWriter& writer, const at::Tensor& tensor);
  static void read(FieldReader& reader, at::Tensor& tensor);
};
