#pragma once
// The current stream of a device, for a scope (torch.cuda.stream is PyTorch's), ordered with the stream
// before.

#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>

namespace trireme::parallel {

/// The current stream is `stream` while it lives: after what was issued before, and before what is issued
/// afterwards.
class OnStream {
 public:
  OnStream(const c10::Stream& outside, const c10::Stream& stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  const c10::Stream outside_, stream_;
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace trireme::parallel
