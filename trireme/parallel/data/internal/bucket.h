#pragma once
// A bucket: a flat tensor in the memory of the group's backend that holds the gradients of several parameters
// of one dtype, one after another. It is reduced as one. Assigning parameters to buckets is a pure function
// of their order, sizes and dtypes, so all ranks come to the same buckets. All buckets of one dtype and
// device are in one memory, allocated once. The backend needs no other memory for another number or order of
// them.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/parallel/data/comm_hook.h"
#include "trireme/parallel/data/gradient_hook.h"

namespace trireme::parallel {

/// Properties of a parameter that decide its place.
struct ParameterForm {
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
  std::vector<std::int64_t> sizes;

  static ParameterForm of(const at::Tensor& tensor) {
    return {tensor.scalar_type(), tensor.device(), tensor.sizes().vec()};
  }
  bool fits(const at::Tensor& tensor) const {
    return tensor.scalar_type() == dtype && tensor.device() == device && tensor.sizes() == sizes;
  }
  /// "(4, 3) f32 on cpu".
  std::string describe() const;
};

/// A parameter as the reducer sees it.
struct Parameter {
  static constexpr std::size_t kNoBucket = static_cast<std::size_t>(-1);

  std::string name;
  at::Tensor tensor;
  bool learns = false;       ///< requires a gradient, by agreement of all ranks; others are in no bucket
  ParameterForm form = {};   ///< of one that learns
  bool is_prepared = false;  ///< the communication hook has it
  HookName hook = {};        ///< on its gradient
  /// Its place in the bucket, with the parameter's shape and strides, in the bucket's storage.
  at::Tensor place = {};
  /// The gradient: a tensor over the place's memory with a storage of its own, which nothing else shares but
  /// aliases of the gradient. No view of the bucket: optimizers may detach and zero a gradient in place.
  at::Tensor view = {};
  std::size_t bucket = kNoBucket;     ///< number of its bucket
  bool fired = false;                 ///< has its gradient in this backward pass
  bool used = false;                  ///< got a gradient since the last reduction (no_sync included)
  std::uint32_t used_version = 0;     ///< the view's version at that time
  bool reduced = false;               ///< the view holds the result of a reduction
  std::uint32_t reduced_version = 0;  ///< the view's version at that time
};

struct Bucket : GradientBucket {
  std::vector<std::size_t> parameters;  ///< numbers of its parameters, in order of their place
  std::size_t pending = 0;              ///< gradients still to come in this backward pass
  std::int64_t started_ns = 0;          ///< of its reduction, where that is traced
  std::function<void()> wait;           ///< waits for the reduction; empty when none is under way
};

/// Whether a caller holds the gradient of an earlier pass, or an alias of it, after it was dropped.
bool is_kept(const Parameter& parameter);
/// Gives the memory of the view to its holders: a copy of the values, in a memory of their own. The parameter
/// gets a new view of its place. One allocation and one copy of the gradient.
void leave_to_holders(Parameter& parameter);
/// Takes the parameter out of its bucket. A gradient that lay there, or is kept, has a memory of its own
/// then.
void leave_bucket(Parameter& parameter);

/// Numbers of the parameters of each bucket, for parameters that become ready in the given order. A bucket is
/// closed when it holds `bucket_bytes` (the first of each dtype: `first_bucket_bytes`).
std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<Parameter>& parameters,
                                                     std::span<const std::size_t> ready_order,
                                                     std::int64_t first_bucket_bytes,
                                                     std::int64_t bucket_bytes);

/// A copy from one place to another of the same shape and strides.
struct Move {
  at::Tensor from;
  at::Tensor to;
};
/// Makes all of them. No two `from` overlap, nor two `to`, but a `to` may overlap others' `from`s: those are
/// copied aside first, as few at a time as their order allows.
void move_all(std::vector<Move> moves);

class BucketMemory {
 public:
  BucketMemory() = default;
  /// Allocates from the group the memory of any buckets of those parameters that are trainable. Zeroed.
  BucketMemory(const comm::Group& group, const std::vector<Parameter>& parameters);
  /// The buckets of an assignment, in its order, and the parameters' views into them. Gradients in views move
  /// with them, and so do their aliases; the other content of a view is undefined.
  std::vector<Bucket> lay_out(std::vector<Parameter>& parameters,
                              std::vector<std::vector<std::size_t>> assignment) const;
  /// The bucket, with its content, has another memory from now on, as long as its `flat`.
  static void move_to(const at::Tensor& memory, Bucket& bucket, std::vector<Parameter>& parameters);

 private:
  using Kind = std::pair<at::ScalarType, std::string>;  ///< and the device
  static Kind kind_of(const at::Tensor& tensor);
  std::map<Kind, at::Tensor> memory_;
};

}  // namespace trireme::parallel
