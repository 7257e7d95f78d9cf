#pragma once
// Reduces uncompressed gradients in slices, in the order of parameters in the model: gradients that the next
// forward needs first overtake waiting ones (ADR 0068). A thread of the hook issues the slices, two at a
// time. Each uses a group of its own next to the gradients' group. Every slice is summed as an all-reduce of
// its size is.

#include <cstdint>
#include <memory>

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

struct SlicingOptions {
  /// Maximum. Gradients that arrive meanwhile wait for two slices in transfer: small slices overtake sooner,
  /// and pay the latency of a message more often. 0: 256 KiB to 4 MiB are tried in the first forty steps, and
  /// all ranks take the size that was fastest for them together. It gains most with buckets of
  /// max_slice_bytes().
  std::int64_t slice_bytes = std::int64_t{512} << 10;
};

/// The largest that slices of such options may be.
std::int64_t max_slice_bytes(const SlicingOptions& options);

/// For the gradients of one group and one set of CPU parameters. Throws InvalidArgument: an option out of its
/// range.
std::shared_ptr<CommHook> make_slicing_hook(const SlicingOptions& options = {});

}  // namespace trireme::parallel
