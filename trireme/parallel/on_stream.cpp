#include "trireme/parallel/on_stream.h"

#include <c10/core/Event.h>

namespace trireme::parallel {
namespace {

/// Work added to `later` after this call starts when all current work of `earlier` is done.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event passed(earlier.device_type());
  passed.record(earlier);
  passed.block(later);
}

}  // namespace

OnStream::OnStream(const c10::Stream& outside, const c10::Stream& stream)
    : outside_(outside), stream_(stream) {
  order(outside_, stream_);
  guard_.emplace(stream_);
}

OnStream::~OnStream() {
  guard_.reset();
  order(stream_, outside_);
}

}  // namespace trireme::parallel
