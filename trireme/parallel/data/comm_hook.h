#pragma once
// The seam for how a bucket of gradients is reduced: as it is, compressed to 16 bits, and later anything that
// sends less. A hook must do the same on every rank.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::parallel {

enum class ReduceScale {
  kMean,  ///< sum over the ranks / number of ranks
  kSum,   ///< for losses that are already divided by the global batch
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Starts the reduction of `bucket` (flat, the gradients' dtype, in place). The returned function waits for
  /// it and leaves the result in `bucket`. Called on every rank in the same order of buckets.
  virtual std::function<void()> start(comm::Group& group, at::Tensor& bucket, ReduceScale scale) = 0;
};

/// One row per hook in comm_hook.cpp: "none", "bf16", "fp16". Throws InvalidArgument with the nearest name.
std::shared_ptr<CommHook> make_comm_hook(const std::string& name);
std::vector<std::string> comm_hook_names();

/// How far a hook of the table rounds what each rank hands in.
struct GradientRounding {
  double relative = 0;  ///< to the number, half of its last bit
  double absolute = 0;  ///< of numbers too small for the format: half of its smallest one
};
/// Throws as make_comm_hook() does.
GradientRounding gradient_rounding(const std::string& name);

}  // namespace trireme::parallel
