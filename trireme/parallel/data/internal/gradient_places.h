#pragma once
// Gradients made where they are reduced, without a copy. What backward allocates is the same in every step: a
// step is watched to learn which of its allocations became the gradients of which parameters, and in the next
// one those allocations are given memory in the parameters' buckets. What turns out another way, because a
// step differs from the one before, is only slower: the gradient lies elsewhere and is copied.
//
// libtorch's allocator of the CPU is wrapped for that, once and for good, when the first of these is made; it
// does what it did wherever none watches. Used by one thread at a time.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace trireme::parallel {

class GradientPlaces : public std::enable_shared_from_this<GradientPlaces> {
 public:
  /// Memory for the gradient of a parameter, in a tensor that nobody else lends out; undefined: none now.
  using Lend = std::function<at::Tensor(std::size_t parameter)>;

  /// To be held by a shared pointer.
  GradientPlaces(std::size_t num_parameters, Lend lend);
  GradientPlaces(const GradientPlaces&) = delete;
  GradientPlaces& operator=(const GradientPlaces&) = delete;

  /// What was learnt in the step before is used from here on.
  void begin_step();
  /// What nodes of a backward allocate on this thread, and no more on another, is watched until stop().
  /// Again: nothing. Others may watch the same.
  void start();
  void stop();
  /// The parameter has got this gradient.
  void arrived(std::size_t parameter, const at::Tensor& gradient);
  /// Whether a tensor lives in the memory that was lent for the parameter.
  bool is_lent(std::size_t parameter) const;
  /// The parameter's place is other memory from now on, which nobody has.
  void moved(std::size_t parameter) { loans_[parameter].reset(); }
  /// Nothing is lent any more. What has been is known until it is gone.
  void end_lending();

  /// While it lives, nobody watches this thread: what it allocates is no part of a backward.
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
  struct Loan;

  void forget();
  c10::DataPtr lend_next(std::size_t bytes);
  c10::DataPtr lend(std::size_t parameter, std::size_t bytes);
  void note(std::size_t bytes, const void* data);

  const Lend lend_;
  std::atomic<std::thread::id> thread_ = {};  ///< that is watched; none
  std::vector<std::weak_ptr<Loan>> loans_;    ///< by parameter
  std::vector<Allocation> expected_;          ///< of the step before
  std::vector<Allocation> made_;              ///< of this step
  bool as_expected_ = false;                  ///< so far
  bool lends_ = true;
};

/// Whether a gradient that has just come has its memory for itself: a hook of a user's may have kept a tensor
/// over it, which must not change with what becomes of the gradient.
bool has_memory_alone(const at::Tensor& gradient);

}  // namespace trireme::parallel
