#pragma once
// Deferred initialization, for models larger than a rank: a module is built with its shapes alone, and only
// the layers that a rank computes with get memory. The module needs no change: all tensors that torch makes
// while a scope is open are on the meta device.
//
//   const auto model = trireme::deferred([&] { return std::make_shared<Net>(); });   // no memory
//   ... train::run_training(config, context, {.model = model});                      // its own stages' alone
//
// First values come from Model::initialise(seed), which leaves tensors without memory out. They depend on
// (seed, name) only, so they are the same for any cut. A module that reads values while it is built cannot be
// deferred: libtorch throws an error. Per thread.

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

/// The result of `make`, built without memory.
template <class Make>
auto deferred(Make&& make) {
  const DeferredScope scope;
  return std::forward<Make>(make)();
}

/// Whether a parameter or a buffer has no memory yet.
bool is_deferred(const torch::nn::Module& module);

/// Gives memory on that device, in place, to the layer's parameters and buffers that have none: all owners of
/// them see it. Values of parameters are undefined. Buffers have the initial values of norms (running_mean,
/// num_batches_tracked: 0, running_var: 1). Throws InvalidArgument: another buffer, whose value only its
/// constructor has.
void materialise(const Layer& layer, c10::Device device = c10::kCPU);

/// Takes the layer's parameters and buffers to that device, in place. Other tensors that its modules hold
/// stay where they are.
void move_to(const Layer& layer, c10::Device device);

/// Zeros of the shapes and types that layers without memory make of the inputs of a batch. Layers with
/// operators whose shapes libtorch cannot infer without computing get memory meanwhile. Throws c10::Error: it
/// does not fit.
Fields outputs_on_shapes(const std::vector<Layer>& layers, const Fields& inputs);

/// The model's outputs for `inputs` (batch, ...) in evaluation mode, without gradients and without effects on
/// the model; zeros of their shapes where the model is deferred. Passes on the exceptions of forward.
Fields outputs_of_trial(Model& model, const Fields& inputs);

/// While it lives, a layer is on that device. A layer without memory gets some, with values for which only
/// times are valid.
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
