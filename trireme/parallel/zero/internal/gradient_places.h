#pragma once
// Gradients made where they are reduced, without a copy. What backward allocates is the same in every step: a
// step is watched to learn which of its allocations became the gradients of which parameters, and in the next
// one those allocations are given memory in the parameters' buckets. What turns out another way, because a
// step differs from the one before, is only slower: the gradient lies elsewhere and is copied.
//
// libtorch's allocator of the CPU is wrapped for that, once and for good, when the first of these is made; it
// does what it did wherever none is active. One thread, for that thread alone.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::parallel {

class GradientPlaces {
 public:
  /// Memory for the gradient of a parameter, in a tensor that nobody else lends out; undefined: none now.
  using Lend = std::function<at::Tensor(std::size_t parameter)>;

  GradientPlaces(std::size_t num_parameters, Lend lend);
  ~GradientPlaces();
  GradientPlaces(const GradientPlaces&) = delete;
  GradientPlaces& operator=(const GradientPlaces&) = delete;

  /// What was learnt in the step before is used from here on.
  void begin_step();
  /// Allocations of this thread are those of a backward, until stop().
  void start();
  void stop();
  /// The parameter has got this gradient.
  void arrived(std::size_t parameter, const at::Tensor& gradient);
  /// Whether a tensor lives in the memory that was lent for the parameter.
  bool is_lent(std::size_t parameter) const;

 private:
  class Allocator;
  struct Allocation {
    std::size_t bytes = 0;
    const void* data = nullptr;
    std::optional<std::size_t> parameter = {};  ///< whose gradient it became
  };
  struct Loan;

  c10::DataPtr allocate(std::size_t bytes);
  c10::DataPtr lend(std::size_t parameter, std::size_t bytes);

  const Lend lend_;
  std::vector<std::weak_ptr<Loan>> loans_;  ///< by parameter
  std::vector<Allocation> expected_;        ///< of the step before
  std::vector<Allocation> made_;            ///< of this step
  bool as_expected_ = false;                ///< so far
};

}  // namespace trireme::parallel
