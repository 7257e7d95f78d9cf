#pragma once
// Reduces gradients as they are, in slices, those first whose parameters come first in the model: what the
// next forward needs first overtakes what is still to go (ADR 0068). A thread of the hook's own issues the
// slices, two at a time, each over a group of its own next to the one whose gradients these are. Every slice
// is added up as an all-reduce of its size is.

#include <cstdint>
#include <memory>

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

struct SlicingOptions {
  /// At most. What arrives meanwhile waits for two slices that are under way: small ones overtake sooner, and
  /// pay the latency of a message more often. 0: 256 KiB to 4 MiB are tried in the first forty steps, and all
  /// ranks take what was fastest for them together; who has buckets of max_slice_bytes() gains most.
  std::int64_t slice_bytes = std::int64_t{512} << 10;
};

/// The largest that slices of such options may be.
std::int64_t max_slice_bytes(const SlicingOptions& options);

/// For the gradients of one group and one set of CPU parameters. Throws InvalidArgument: an option out of its
/// range.
std::shared_ptr<CommHook> make_slicing_hook(const SlicingOptions& options = {});

}  // namespace trireme::parallel
