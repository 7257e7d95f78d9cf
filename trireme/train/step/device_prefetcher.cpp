#include "trireme/train/step/device_prefetcher.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "trireme/base/error.h"

namespace trireme::train {
namespace {

std::optional<c10::Stream> stream_of_copies(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

/// The allocator does not reuse their memory before that stream has finished with it.
void lend(const Fields& fields, const c10::Stream& stream) {
  const c10::impl::VirtualGuardImpl device(stream.device_type());
  for (const batch::Field& field : fields)
    device.recordDataPtrOnStream(field.tensor.storage().data_ptr(), stream);
}

}  // namespace

DevicePrefetcher::DevicePrefetcher(std::unique_ptr<data::BatchStream> stream, c10::Device device,
                                   const data::Needed& needed)
    : stream_(std::move(stream)), device_(device), needed_(needed), copies_(stream_of_copies(device)) {}

DevicePrefetcher::Batch DevicePrefetcher::take() {
  Batch batch{.host = stream_->next(), .there = {}};
  if (!copies_) return batch;
  const c10::StreamGuard guard(*copies_);
  for (const data::Example& samples : batch.host.microbatches) {
    Copied copied{.samples = samples, .arrived = c10::Event(device_.type())};
    if (needed_.inputs) copied.samples.input = samples.input.on(device_);
    if (needed_.targets) copied.samples.target = samples.target.on(device_);
    copied.arrived.record(*copies_);
    batch.there.push_back(std::move(copied));
  }
  return batch;
}

const data::StepBatch& DevicePrefetcher::next() {
  now_ = ahead_ ? std::move(*std::exchange(ahead_, std::nullopt)) : take();
  return now_.host;
}

data::Example DevicePrefetcher::microbatch(std::size_t m) {
  if (!copies_) return now_.host.microbatches[m];
  Copied& copied = now_.there[m];
  const c10::Stream computing = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  copied.arrived.block(computing);
  if (needed_.inputs) lend(copied.samples.input, computing);
  if (needed_.targets) lend(copied.samples.target, computing);
  return std::move(copied.samples);
}

void DevicePrefetcher::copy_ahead() {
  if (!copies_ || ahead_ || !stream_->is_ready()) return;
  try {
    ahead_ = take();
  } catch (const DataError&) {
    // The stream throws it again in next() for that batch.
  }
}

void DevicePrefetcher::seek(std::uint64_t step) {
  ahead_.reset();
  stream_->seek(step);
}

}  // namespace trireme::train
