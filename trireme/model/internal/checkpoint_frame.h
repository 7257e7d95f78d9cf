#pragma once
// One run of a checkpointed forward. Each tensor that autograd saves in it gets a number, in order; a second
// run saves the same ones in the same order, and so finds each by its number. The graph's saved variables own
// the frame. A frame saves its inputs as autograd would, so that the outer one of two nested checkpointed
// forwards has them.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/model/forward_record.h"
#include "trireme/model/internal/saved_tensors.h"

namespace trireme::model {

struct CheckpointedForward {
  std::string name;
  std::function<Fields(const Fields&)> forward;
  Tensors buffers;
};

class CheckpointFrame : public SavedTensorKeeper, public std::enable_shared_from_this<CheckpointFrame> {
 public:
  explicit CheckpointFrame(CheckpointedForward what) : what_(std::move(what)) {}

  /// The first run.
  Fields run(const Fields& inputs);

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;

 private:
  class Placeholder;
  class Again;
  struct LastIsThere {};

  struct Input {
    torch::autograd::SavedVariable saved;
    bool learns = false;
    std::uint32_t version = 0;
  };
  struct Slot {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    c10::Device device = c10::kCPU;
    bool wanted = true;      ///< a saved variable is still there for it
    at::Tensor tensor = {};  ///< a leaf that learns, which lives anyway; else undefined until made again
    std::uint32_t version = 0;
  };

  std::size_t keep(const at::Tensor& tensor);
  at::Tensor take(std::size_t number);
  void forget(std::size_t number);
  void run_again();
  void fill(std::size_t number, const at::Tensor& tensor);
  bool is_missing(const Slot& slot) const { return slot.wanted && !slot.tensor.defined(); }
  std::size_t end_of_missing() const;
  Fields inputs_again() const;

  const CheckpointedForward what_;
  /// Backward may come to parts of the graph on several threads, one for each device.
  std::recursive_mutex mutex_;
  ForwardRecord record_;
  Fields names_;  ///< of the inputs
  std::vector<Input> inputs_;
  std::vector<Slot> slots_;
};

}  // namespace trireme::model
