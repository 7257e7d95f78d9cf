#pragma once
// Models larger than a rank: a module is built with its shapes alone, and only the layers that a rank
// computes with get memory. It needs nothing of the module: whatever torch makes while a scope is open is
// made on the meta device.
//
//   const auto model = trireme::deferred([&] { return std::make_shared<Net>(); });   // no memory
//   ... train::run_training(config, context, {.model = model});                      // its own stages' alone
//
// First values come from Model::initialise(seed), which leaves tensors without memory out: they depend on
// (seed, name) only, so that they are the same for any cut. A module that reads values while it is built
// cannot be deferred: libtorch says so. Per thread.

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>

#include <utility>
#include <vector>

#include "trireme/model/layer.h"
#include "trireme/model/model.h"

namespace trireme::model {

/// While it lives, tensors that this thread makes have no memory.
class DeferredScope {
 public:
  DeferredScope();

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// What `make` returns, built without memory.
template <class Make>
auto deferred(Make&& make) {
  const DeferredScope scope;
  return std::forward<Make>(make)();
}

/// Whether a parameter or a buffer has no memory yet.
bool is_deferred(const torch::nn::Module& module);

/// Gives memory on that device, in place, to the layer's parameters and buffers that have none: whoever holds
/// them sees it. Values of parameters are undefined; buffers are those that norms begin with (running_mean,
/// num_batches_tracked: 0, running_var: 1). Throws InvalidArgument: another buffer, whose value only its
/// constructor knows.
void materialise(const Layer& layer, c10::Device device = c10::kCPU);

/// Takes the layer's parameters and buffers to that device, in place. Other tensors that its modules hold
/// stay where they are.
void move_to(const Layer& layer, c10::Device device);

/// Zeros of the shapes and types that layers without memory make of the inputs of a batch. Layers with
/// operators whose shapes libtorch does not tell without computing get memory for as long. Throws c10::Error:
/// it does not fit.
Fields outputs_on_shapes(const std::vector<Layer>& layers, const Fields& inputs);

/// The model's outputs for `inputs` (batch, ...) in evaluation mode, without gradients and without a trace in
/// the model; zeros of their shapes where the model is deferred. Throws what forward throws.
Fields outputs_of_trial(Model& model, const Fields& inputs);

/// While it lives, a layer lies on that device: without memory of its own it has some, with values that only
/// time can tell from others.
class BorrowedMemory {
 public:
  explicit BorrowedMemory(const Layer& layer, c10::Device device = c10::kCPU);
  ~BorrowedMemory();
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;

 private:
  struct Borrowed {
    at::Tensor tensor;
    at::Tensor before;  ///< over the memory that it had
  };
  std::vector<Borrowed> borrowed_;
};

}  // namespace trireme::model

namespace trireme {
using model::deferred;
}
