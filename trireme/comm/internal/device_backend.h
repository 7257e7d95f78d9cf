#pragma once
// A backend for tensors of the CPU and of a device: CPU tensors go over `host`; device tensors over `device`,
// or, where that is null, over `host` too, through a copy in its memory. Such an operation begins when the
// device has computed its input, and waiting for it copies the result back. Without a wait its output is
// unchanged. Works of `host` keep their guarantees.

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme::comm {

c10::intrusive_ptr<c10d::Backend> make_device_backend(c10::intrusive_ptr<c10d::Backend> host,
                                                      c10::intrusive_ptr<c10d::Backend> device);

}  // namespace trireme::comm
