#pragma once
// The seam for how a bucket of gradients is reduced: as it is, in 16 bits, or in as few bytes as one of the
// compressions makes of it (docs/compression.md). A hook must do the same on every rank.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

/// Relation of a reduced gradient to those of the ranks.
enum class ReduceScale {
  kMean,  ///< sum over the ranks / number of ranks
  kSum,   ///< for losses that are already divided by the global batch
};

/// Gradients of one dtype and device that are reduced as one. The tensors share memory, and live as long as
/// a reduction of them is under way.
struct GradientBucket {
  at::Tensor flat;  ///< all of it: the gradients, gaps of zeros between them, and the flag
  at::Tensor flag;  ///< the last element, not zero when a rank has something to report; undefined: not here
  optim::NamedTensors gradients;  ///< views with the sizes and strides of the parameters, in order of place
};

/// State on which the next reductions of a hook depend, besides gradients: by name, restored in place.
struct HookState {
  optim::NamedTensors own;     ///< different on each rank; their sum over the ranks is the state
  optim::NamedTensors common;  ///< the same on all ranks
  /// Of a vector of `numel` elements, those that this rank has, from `begin` on.
  struct Piece {
    std::string name;
    at::Tensor tensor;
    std::int64_t begin, numel;
  };
  std::vector<Piece> pieces;
  /// Where hosts and not ranks have their own: of which one this rank's `own` is.
  struct OfHost {
    int host = 0, num_hosts = 0;  ///< 0: of this rank
  };
  OfHost of_host = {};
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Adds these parameters to those whose gradients the hook reduces. Throws InvalidArgument where it cannot
  /// reduce them, or has a parameter of the name already: a hook's state is that of one model.
  virtual void prepare(const comm::Group& /*group*/, const optim::NamedTensors& /*parameters*/) {}
  /// The state of the optimizer that takes these gradients (Optimizer::state()), shared; once, before the
  /// first step. Throws InvalidArgument where it lacks a state that the hook needs.
  virtual void attach_optimizer(const std::map<std::string, at::Tensor>& /*state*/) {}
  /// From the next step on, incoming gradients are `scale` times those of the unscaled loss
  /// (optim/loss_scaler.h). So are the reduced ones. State from step to step is of gradients divided by it.
  /// Call it between steps, with the same value on all ranks. Throws InvalidArgument: not above 0.
  virtual void set_gradient_scale(double /*scale*/) {}
  /// Starts the reduction of `bucket`, in place. The returned function waits for it and leaves the result
  /// there. Called on every rank in the same order of buckets. The assignment of gradients to buckets changes
  /// now and then.
  virtual std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) = 0;
  virtual HookState state() { return {}; }
  /// state() has been filled, by any number of ranks. Collective.
  virtual void restored() {}
  /// Of which group the memory of buckets had best be, once parameters are named.
  virtual comm::Group memory_of(const comm::Group& group) const { return group; }
  /// A description that has to be the same on all ranks.
  virtual std::string describe() const { return "given"; }
  /// Its advice for this run, in words; empty: none, or not yet.
  virtual std::string found() const { return {}; }
  /// Bytes that this rank has sent so far, as if in a ring; 0 without a count.
  virtual std::int64_t sent_bytes() const { return 0; }
};

struct CompressionOptions {
  std::string name = "none";  ///< one of comm_hook_names()
  double fraction = 0.001;    ///< top-k, dgc: of each gradient that is sent
  /// The same: in so many first steps 1/4, 1/16, 1/64 and 1/256 of it. one-bit: updates before it begins.
  std::int64_t warmup_steps = 0;
  std::int64_t rank = 4;          ///< power-sgd
  double momentum = 0.9;          ///< dgc: of the velocity that each rank keeps for itself; one-bit: beta1
  std::int64_t min_numel = 1024;  ///< smaller gradients, and vectors, go as they are
  std::uint64_t seed = 0;         ///< of random numbers
  /// dgc: the norm that the gradients of all ranks are to have together at most; each rank holds its own to
  /// 1/sqrt(ranks) of it before anything of them is kept or sent. 0: none.
  double clip_norm = 0;
  /// One of compression_scope_names(): "hosts" adds gradients up inside each host as they are, and compresses
  /// between hosts; "auto" does so where there are several, one of them with several ranks; "all" never. Of
  /// no effect on "none", "bf16", "fp16", which groups over several hosts reduce by hosts in any case. By
  /// hosts the hook has groups, for one group's gradients, and must not outlive their context.
  std::string scope = "auto";
};

/// One row per hook in comm_hook.cpp. Throws InvalidArgument with the nearest name, or for options that are
/// out of their range.
std::shared_ptr<CommHook> make_comm_hook(const CompressionOptions& options);
std::shared_ptr<CommHook> make_comm_hook(const std::string& name);
std::vector<std::string> comm_hook_names();
std::vector<std::string> compression_scope_names();

/// Bounds of the rounding of each rank's gradients by a hook of the table.
struct GradientRounding {
  double relative = 0;  ///< to the number, half of its last bit
  double absolute = 0;  ///< of numbers too small for the format: half of its smallest one
  /// Not only rounding: the result of a step may differ by any amount from the mean of that step's gradients.
  bool is_lossy = false;
};
/// Throws as make_comm_hook() does.
GradientRounding gradient_rounding(const std::string& name);
/// Whether momentum is the hook's and not the optimizer's.
bool has_own_momentum(const std::string& name);
/// Whether it compresses the momentum of an optimizer whose mean square stays as it is after a warm-up
/// (OptimizerOptions::variance_steps).
bool compresses_momentum(const std::string& name);

}  // namespace trireme::parallel
