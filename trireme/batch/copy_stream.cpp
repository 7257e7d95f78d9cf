#include "trireme/batch/copy_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme::batch {

CopyStream::CopyStream(c10::Device device) : device_(device) {
  if (!device_.is_cpu())
    stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
}

c10::Stream CopyStream::current() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

CopyStream::Mark CopyStream::mark() const {
  if (!stream_) return nullptr;
  auto mark = std::make_shared<c10::Event>(device_.type());
  mark->record(*stream_);
  return mark;
}

void CopyStream::wait_for(const Mark& mark) const {
  if (mark && stream_) mark->block(*stream_);
}

void CopyStream::join(const Mark& mark) const {
  if (mark) mark->block(current());
}

void CopyStream::run(const std::function<void()>& copy) {
  if (!stream_) return copy();
  c10::Event before(device_.type());
  before.record(current());
  before.block(*stream_);
  const c10::StreamGuard guard(*stream_);
  copy();
}

void CopyStream::lend(const at::Tensor& tensor) const {
  if (stream_ && tensor.device() == device_)
    c10::impl::VirtualGuardImpl(device_.type()).recordDataPtrOnStream(tensor.storage().data_ptr(), *stream_);
}

}  // namespace trireme::batch
