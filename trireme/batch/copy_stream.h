#pragma once
// A stream of a device for copies that run while the device computes. On the CPU there is none, and
// everything is done at once. One thread at a time.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

namespace trireme::batch {

class CopyStream {
 public:
  /// Of the CPU: no stream.
  explicit CopyStream(c10::Device device);

  /// Issues the work of `copy` on this stream, after all earlier work of the device's current stream. The
  /// host does not wait. Memory that is freed afterwards is lent(): named by the caller.
  void run(const std::function<void()>& copy);
  /// A place in a stream, which others can wait for; null: nothing to wait for.
  using Mark = std::shared_ptr<c10::Event>;
  /// After all that this stream was given so far.
  Mark mark() const;
  /// Later work of this stream, or of the device's current one, comes after the mark. The host does not wait.
  void wait_for(const Mark& mark) const;
  void join(const Mark& mark) const;
  /// This stream uses the memory of `tensor`, which may be freed before that is done.
  void lend(const at::Tensor& tensor) const;

 private:
  c10::Stream current() const;

  const c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace trireme::batch
