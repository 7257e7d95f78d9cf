#pragma once
// The buckets in which the stages of a rank reduce their gradients: their memory, and the pending reductions.
// For any number of stages, only a fixed number of buckets has memory at a time (gradient_buckets.h); a
// request for another one waits for the oldest reduction. One thread.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/parallel/zero/gradient_buckets.h"
#include "trireme/parallel/zero/zero_options.h"

namespace trireme::parallel {

class BucketPool {
 public:
  BucketPool(comm::Group group, const BucketLimits& limits) : group_(std::move(group)), limits_(limits) {}
  /// For the gradients of these parameters, which are sharded over the group. Parameters without a gradient
  /// do not count.
  BucketPool(comm::Group group, const ZeroOptions& zero, const std::vector<at::Tensor>& parameters);

  const BucketLimits& limits() const { return limits_; }
  bool keeps_all() const { return limits_.at_a_time == BucketLimits::kAll; }

  /// Buckets of so many elements, of that type and device, will be taken: memory is made for the largest.
  void expect(std::int64_t numel, const at::Tensor& like);
  /// Memory for at least so many elements. Its content is undefined. Throws the errors of reductions.
  at::Tensor take(std::int64_t numel, const at::Tensor& like);
  void give_back(at::Tensor flat);
  /// The same without a limit, for memory that takes the place of some that was taken.
  at::Tensor allocate(std::int64_t numel, const at::Tensor& like) const;

  /// A reduction of memory of take() has begun; `wait` returns when it has ended, and then `done` is called.
  /// They are waited for in the order of these calls. Before `done` the memory is freed, unless the pool
  /// keeps all: then `done` has to free it.
  void reduce(const void* owner, at::Tensor flat, std::function<void()> wait, std::function<void()> done);
  /// Until all of the owner's are done.
  void wait_for(const void* owner);
  bool is_reducing(const void* owner) const;
  /// The owner has ended: drops its reductions.
  void forget(const void* owner);
  /// Seconds for which this thread has waited for reductions.
  double waited_s() const { return waited_s_; }

 private:
  struct Reduction {
    const void* owner;
    at::Tensor flat;
    std::function<void()> wait, done;
  };
  struct Expected {
    at::TensorOptions kind;
    std::int64_t numel;
  };
  void retire_oldest();
  std::int64_t numel_for(std::int64_t numel, const at::Tensor& like) const;

  comm::Group group_;
  const BucketLimits limits_;
  std::vector<Expected> expected_;
  std::vector<at::Tensor> spares_;
  std::deque<Reduction> reductions_;
  std::size_t num_taken_ = 0;
  double waited_s_ = 0;
};

}  // namespace trireme::parallel
