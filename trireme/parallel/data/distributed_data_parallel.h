#pragma once
// Data parallelism for any torch::nn::Module. Every rank holds a replica and works on its part of the batch;
// gradients are reduced over the ranks while backward still runs. (Li et al., "PyTorch Distributed", VLDB
// 2020, arXiv 2006.15704: buckets in reverse order, overlap with backward; own flat-buffer reducer.)
//
//   trireme::DistributedDataParallel ddp(context, model);
//   for (...) { loss(model->forward(x), y).backward(); optimizer.step(); optimizer.zero_grad(); }
//
// Post-accumulate hooks on the parameters start the reduction, so the loop calls the module and backward as
// usual. When backward() returns, every .grad holds the mean over the ranks and is in a bucket. Collective:
// every rank makes it, and runs the same number of synchronised backward passes (Join lifts that). One thread
// runs forward and backward. requires_grad may change between steps, on all ranks before the same pass. A
// parameter must not be added, removed, replaced, converted or moved during its lifetime. The next pass, or
// zero_grad(), then throws an InvalidArgument that names it. Cost per step: that of the group's all_reduce.
// On the CPU gradients of 16 KiB and more are made in their buckets from the third step on, if steps are
// alike. Otherwise they are copied there. A group of one rank does nothing. A pass that ends by an exception
// fails the group on all ranks by name once a bucket is in transfer; before that it may be repeated.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

/// Handling of parameters that a backward pass does not reach.
enum class UnusedParameters {
  kError,   ///< an error that names them
  kFind,    ///< found in every step; a parameter that no rank used keeps its old gradient
  kStatic,  ///< found in the first step, the same from then on
};

/// "error", "find", "static". Throws InvalidArgument for an unknown name, with the nearest known one.
UnusedParameters unused_parameters_of(const std::string& name);
std::vector<std::string> unused_parameters_names();

/// When the reductions end that a synchronised backward pass has started.
enum class ReductionEnd {
  kWithBackward,  ///< before backward() returns
  kOnRequest,     ///< in finish_reduction(): work in between runs concurrently with them
  kByParameter,   ///< the same, and the caller asks for parameters one after the other
};

/// The replicated parameters, by the names of the model: all of it, or the part of a pipeline's stage.
struct Replica {
  optim::NamedTensors parameters, buffers;
};

/// How gradients are reduced; the same on all ranks.
struct DataParallelOptions {
  double bucket_mib = 25;
  double first_bucket_mib = 1;
  UnusedParameters unused_parameters = UnusedParameters::kError;
  bool broadcast_buffers = true;  ///< rank 0's buffers (batch norm statistics) to all after every reduction
  ReduceScale scale = ReduceScale::kMean;
  ReductionEnd end = ReductionEnd::kWithBackward;
  std::shared_ptr<CommHook> hook = nullptr;  ///< how a bucket is reduced; none: all-reduce as it is
  /// In every so many reductions the ranks compare digests of all parameters, as they are when backward ends
  /// (replica_check.h). Different ones are a CommError of backward() on all ranks that names the first
  /// parameter and the ranks. Not in a Join without `follow`, whose ranks have older values. 0: never.
  std::int64_t check_replicas_every = 100;
};

struct JoinUnderWay;

class DistributedDataParallel {
  struct Reducer;

 public:
  /// Checks that all ranks hold the same parameters (number, names, shapes, dtypes; the first difference is
  /// named with both sides), then broadcasts rank 0's parameters and buffers. Throws CommError,
  /// InvalidArgument (no parameter needs a gradient).
  DistributedDataParallel(comm::Context& context, std::shared_ptr<torch::nn::Module> module,
                          const DataParallelOptions& options = {});
  /// The same over a group (a mesh axis) instead of the world.
  DistributedDataParallel(comm::Group group, std::shared_ptr<torch::nn::Module> module,
                          const DataParallelOptions& options = {});
  /// The same for tensors that are no module of their own.
  DistributedDataParallel(comm::Group group, Replica replica, const DataParallelOptions& options = {});
  /// Fails the group when reductions are under way.
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  /// While it lives, backward passes add up locally and reduce nothing; the first one after it reduces the
  /// sum, as the gradients are then. One that has been dropped, or zeroed in place, counts as never used.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallel& ddp_;
    bool before_;
  };
  /// A NoSync of this object: `const auto apart = ddp.no_sync();`.
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// A wrapper of a Join. `follow` is called on a rank without a batch after each reduction of this wrapper,
  /// the result in its gradients: with the optimizer's step and zero_grad in it, all replicas stay the same,
  /// optimizer state included. Without it, all ranks take over parameters and buffers of one that took every
  /// step, at the end.
  struct Joined {
    DistributedDataParallel& ddp;
    std::function<void()> follow = nullptr;
  };

  /// Uneven inputs: `while (join.next(have_batch)) { ... }`. A rank without a batch joins the others'
  /// reductions with zeros until no rank has one; then next() is false on every rank. Means are still taken
  /// over all ranks. Ranks with a batch run the same synchronised passes per step, in the same order. A rank
  /// without one does not run the loop's body. Actions once per step on every rank, such as the step of a
  /// learning-rate schedule or a counter, go into after_step(). One Join at a time between the same ranks,
  /// over all wrappers that its body reduces with: a second one, and a synchronised pass of another wrapper
  /// between them, are InvalidArgument.
  class Join {
   public:
    /// Over one wrapper, with `follow` as in Joined. Throws InvalidArgument next to another Join.
    explicit Join(DistributedDataParallel& ddp, std::function<void()> follow = nullptr);
    /// Over several wrappers of the same ranks, all with `follow` or all without, in the same order on every
    /// rank. A backward pass reaches parameters of one of them that require a gradient.
    explicit Join(std::vector<Joined> joined);
    ~Join();
    Join(const Join&) = delete;
    Join& operator=(const Join&) = delete;
    /// Calls `action` in next(), on every rank, once after each step for which some rank had a batch.
    void after_step(std::function<void()> action) { after_step_ = std::move(action); }
    /// Those steps so far; the same on every rank.
    std::int64_t steps() const { return steps_; }
    /// Collective. True when this rank shall run a step with the batch it has. A small reduction per call
    /// and one per synchronised pass. Throws CommError.
    bool next(bool have_batch);

   private:
    Reducer& reducer(std::size_t number) const;
    void announce(std::size_t number) const;
    void end_step();

    const std::vector<Joined> joined_;
    const std::shared_ptr<std::vector<JoinUnderWay>> under_way_;  ///< of this rank
    std::function<void()> after_step_;
    bool in_step_ = false;
    std::int64_t steps_ = 0;
  };

  /// Joins the others' synchronised pass on a rank that has no backward to run. It adds zeros, and the
  /// gradients that passes under no_sync have accumulated. It uses no parameter besides theirs. Afterwards
  /// its gradients are the reduced ones. Throws CommError, InvalidArgument before finish_reduction().
  void reduce_without_backward();

  /// Reduces the gradients that torch::autograd::grad(outputs, parameters) has returned, which no backward
  /// pass reduces, with the scale of the options. `gradients[i]` is that of `parameters[i]`, dense, of its
  /// shape, dtype and device. Afterwards all ranks have the same ones, in memory of their own. An undefined
  /// gradient (allow_unused) counts as zeros, and stays undefined where no rank has one. No .grad changes.
  /// Collective: as many parameters of the same shapes on all ranks. One all-reduce for each dtype and
  /// device, without the hook of the options. On a device, a rank with undefined gradients waits for it.
  /// Throws CommError; InvalidArgument: a gradient that does not fit, or was made with create_graph; a Join
  /// or a reduction in progress.
  void reduce_gradients(std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& parameters);

  /// With ReductionEnd::kOnRequest, or kByParameter: starts the rest of the last synchronised pass, which is
  /// gradients that it did not reach and buffers. Without a pass it does the same as
  /// reduce_without_backward(). No effect where that is done. Throws CommError.
  void start_reduction();
  /// With ReductionEnd::kOnRequest: waits for the reductions of the last synchronised pass and of
  /// start_reduction(), which it calls where there was a pass. Afterwards every .grad holds the reduced
  /// gradient. No effect where that is done. A backward pass between the synchronised one and this, under
  /// no_sync too, writes into memory of the reduction, and fails the group. Throws CommError, InvalidArgument
  /// as backward() does otherwise.
  void finish_reduction();
  /// The same for the gradients of these parameters, which alone are waited for, and for buffers: others may
  /// be on their way still, and the last one ends the reduction for all. Of no parameters: for buffers. As
  /// finish_reduction() where only a whole pass shows which gradients there are: in the first one, with
  /// UnusedParameters other than kError, and after reduce_without_backward(). No gradient is handed out
  /// before all ranks are known to have had all.
  void finish_reduction(const optim::NamedTensors& parameters);

  /// Drops the gradients without freeing the buckets: the next backward pass writes them again.
  void zero_grad();

  /// Counts of the reducer on this rank so far.
  struct Statistics {
    std::uint64_t reductions = 0;   ///< synchronised backward passes
    double waited_s = 0;            ///< time that backward waited for buckets at its end
    std::int64_t copied_bytes = 0;  ///< of gradients that backward has made elsewhere than in their buckets
    std::vector<std::int64_t> bucket_bytes;
    bool rebuilt = false;  ///< buckets follow the observed ready order
  };
  Statistics statistics() const;

 private:
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace trireme::parallel

namespace trireme {
using parallel::DistributedDataParallel;
}
