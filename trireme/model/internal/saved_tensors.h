#pragma once
// Keepers of the tensors that autograd saves for a backward. While a SavedTensorsScope lives, those that this
// thread's operators save go to its keeper, through libtorch's hooks of saved variables
// (torch/csrc/autograd/saved_variable_hooks.h). C++ reaches them through an engine of its own: the first
// scope puts one before libtorch's for the life of the process, which has libtorch's run every backward.
// Scopes nest; the inner one counts.

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace trireme::model {

class SavedTensorKeeper {
 public:
  virtual ~SavedTensorKeeper() = default;
  /// Returns the hooks for one saved tensor. call_pack_hook gets the tensor at once. call_unpack_hook returns
  /// it, or an equal one, whenever the backward needs it, perhaps on another thread.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
};

class SavedTensorsScope {
 public:
  explicit SavedTensorsScope(SavedTensorKeeper& keeper);
  ~SavedTensorsScope();
  SavedTensorsScope(const SavedTensorsScope&) = delete;
  SavedTensorsScope& operator=(const SavedTensorsScope&) = delete;

  /// The keeper of the outer scope; null: autograd.
  SavedTensorKeeper* outer() const { return before_; }

 private:
  SavedTensorKeeper* const before_;
};

}  // namespace trireme::model
