#pragma once
// A backend for tensors of the CPU and of a device: what lies on the CPU goes over `host`; what lies on the
// device over `device`, or, where that is null, over `host` too, by way of a copy in its memory. Such an
// operation begins when the device has computed what is sent, and waiting for it brings the result there: one
// that nobody waits for leaves its output as it was. Works of `host` keep its promises.

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme::comm {

c10::intrusive_ptr<c10d::Backend> make_device_backend(c10::intrusive_ptr<c10d::Backend> host,
                                                      c10::intrusive_ptr<c10d::Backend> device);

}  // namespace trireme::comm
