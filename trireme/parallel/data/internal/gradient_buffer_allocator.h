#pragma once
// Gradients are allocated in the buckets in which they are reduced, without a copy. Backward makes the same
// allocations in every step. One step is recorded to learn which of them become the gradients of which
// parameters. In the next step these get memory in the parameters' buckets. If the allocation pattern
// changes, gradients are copied instead; results are unaffected.
//
// For this libtorch's CPU allocator is wrapped, permanently, when the first allocator is made; otherwise it
// behaves as before. Used by one thread at a time.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace trireme::parallel {

class GradientBufferAllocator : public std::enable_shared_from_this<GradientBufferAllocator> {
 public:
  /// Memory for the gradient of a parameter, in a tensor without other leases; undefined: none now.
  using MakeBuffer = std::function<at::Tensor(std::size_t parameter)>;

  /// To be held by a shared pointer.
  GradientBufferAllocator(std::size_t num_parameters, MakeBuffer lease);
  GradientBufferAllocator(const GradientBufferAllocator&) = delete;
  GradientBufferAllocator& operator=(const GradientBufferAllocator&) = delete;

  /// The assignment of the step before is used from here on.
  void begin_step();
  /// Observes allocations of the nodes of a backward on this thread, and no more on another, until stop().
  /// Again: no effect. Others may observe the same.
  void start();
  void stop();
  /// The parameter has got this gradient.
  void arrived(std::size_t parameter, const at::Tensor& gradient);
  /// Whether a tensor lives in the memory that was lent for the parameter.
  bool is_leased(std::size_t parameter) const;
  /// The parameter's place is other memory from now on, which has no lease.
  void moved(std::size_t parameter) { leases_[parameter].reset(); }
  /// Ends leasing. Earlier leases are tracked until they are freed.
  void end_leasing();

  /// While it lives, no allocator observes this thread: its allocations are no part of a backward.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };

 private:
  class Allocator;
  struct Allocation {
    std::size_t bytes = 0;
    const void* data = nullptr;
    std::optional<std::size_t> parameter = {};  ///< whose gradient it became
  };
  struct Lease;

  void forget();
  c10::DataPtr lease_next(std::size_t bytes);
  c10::DataPtr lease(std::size_t parameter, std::size_t bytes);
  void note(std::size_t bytes, const void* data);

  const MakeBuffer make_buffer_;
  std::atomic<std::thread::id> thread_ = {};  ///< that is watched; none
  std::vector<std::weak_ptr<Lease>> leases_;  ///< by parameter
  std::vector<Allocation> expected_;          ///< of the step before
  std::vector<Allocation> made_;              ///< of this step
  bool as_expected_ = false;                  ///< so far
  bool lends_ = true;
};

/// Whether a new gradient alone uses its memory: a user's hook may have kept a tensor over it, which must not
/// change with the gradient.
bool has_memory_alone(const at::Tensor& gradient);

}  // namespace trireme::parallel
