#include "trireme/model/internal/checkpoint_frame.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/checkpointed.h"

namespace trireme::model {
namespace {

std::string in_words(at::ScalarType dtype, at::IntArrayRef sizes, c10::Device device) {
  return text(c10::toString(dtype), " of shape ", sizes, " on ", device.str());
}

constexpr const char* kDoTheSame =
    "; it must do the same each time (same_again() keeps a number that it depends on), or be left out of "
    "what "
    "is recomputed";

/// Whether LastIsThere is being thrown.
thread_local bool is_leaving = false;

/// Resets is_leaving after the second run, also where the forward caught LastIsThere.
struct Leaving {
  const bool before = std::exchange(is_leaving, false);
  ~Leaving() { is_leaving = before; }
};

std::uint32_t version_of(const at::Tensor& tensor) { return tensor.defined() ? tensor._version() : 0; }

at::Tensor leaf_of(const at::Tensor& tensor, bool learns) {
  at::Tensor leaf = tensor.detach();
  if (learns) leaf.requires_grad_(true);
  return leaf;
}

}  // namespace

bool is_leaving_second_run() { return is_leaving; }

/// Represents the tensor with a number in a saved variable.
class CheckpointFrame::Placeholder : public torch::autograd::SavedVariableHooks {
 public:
  explicit Placeholder(std::shared_ptr<CheckpointFrame> frame) : frame_(std::move(frame)) {}
  ~Placeholder() override {
    if (number_) frame_->forget(*number_);
  }
  Placeholder(const Placeholder&) = delete;
  Placeholder& operator=(const Placeholder&) = delete;

  void call_pack_hook(const at::Tensor& tensor) override { number_ = frame_->keep(tensor); }
  at::Tensor call_unpack_hook() override { return frame_->take(*number_); }

 private:
  const std::shared_ptr<CheckpointFrame> frame_;
  std::optional<std::size_t> number_;
};

/// Keeps the tensors that a second run saves, each under its number. The graph of that run is dropped soon.
/// Until then, the forward may differentiate in it.
class CheckpointFrame::Again : public SavedTensorKeeper {
 public:
  explicit Again(CheckpointFrame& frame) : frame_(frame), end_(frame.end_of_missing()) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override {
    return std::make_unique<Kept>(*this);
  }
  bool is_done() const { return next_ >= end_; }
  std::size_t num_saved() const { return next_; }

 private:
  class Kept : public torch::autograd::SavedVariableHooks {
   public:
    explicit Kept(Again& again) : again_(again) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      tensor_ = tensor.detach();
      again_.see(tensor_);
    }
    at::Tensor call_unpack_hook() override { return tensor_; }

   private:
    Again& again_;
    at::Tensor tensor_;
  };

  void see(const at::Tensor& tensor) {
    if (next_ < frame_.slots_.size()) frame_.fill(next_, tensor);
    ++next_;
    if (!is_done()) return;
    is_leaving = true;
    throw LastIsThere();
  }

  CheckpointFrame& frame_;
  const std::size_t end_;  ///< one past the last missing tensor
  std::size_t next_ = 0;
};

Fields CheckpointFrame::run(const Fields& inputs) {
  names_ = inputs.map([](const at::Tensor&) { return at::Tensor(); });
  for (const auto& [name, input] : inputs) {
    inputs_.push_back({.saved = {input, /*is_output=*/false},
                       .learns = input.defined() && input.requires_grad(),
                       .version = version_of(input)});
  }
  const ForwardRecord::Recording recording(record_);
  const SavedTensorsScope scope(*this);
  Fields outputs = what_.forward(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require(version_of(inputs.at(i)) == inputs_[i].version, what_.name, " changes its input ",
            batch::name_of(inputs, i),
            " in place, and could not be recomputed from it; let it work on a copy, or leave it out of "
            "what is recomputed");
  }
  return outputs;
}

std::unique_ptr<torch::autograd::SavedVariableHooks> CheckpointFrame::hooks() {
  return std::make_unique<Placeholder>(shared_from_this());
}

std::size_t CheckpointFrame::keep(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  Slot slot{.sizes = tensor.sizes().vec(), .dtype = tensor.scalar_type(), .device = tensor.device()};
  if (tensor.is_leaf() && tensor.requires_grad()) {
    slot.tensor = tensor;
    slot.version = tensor._version();
  }
  slots_.push_back(std::move(slot));
  return slots_.size() - 1;
}

void CheckpointFrame::forget(std::size_t number) {
  const std::lock_guard lock(mutex_);
  slots_[number].wanted = false;
  slots_[number].tensor.reset();
}

at::Tensor CheckpointFrame::take(std::size_t number) {
  const std::lock_guard lock(mutex_);
  if (is_missing(slots_[number])) run_again();
  const Slot& slot = slots_[number];
  require(slot.tensor._version() == slot.version, what_.name, ": a tensor that its backward needs (number ",
          number, ", ", in_words(slot.dtype, slot.sizes, slot.device),
          ") was changed in place after it was saved");
  return slot.tensor;
}

std::size_t CheckpointFrame::end_of_missing() const {
  const auto last =
      std::find_if(slots_.rbegin(), slots_.rend(), [&](const Slot& s) { return is_missing(s); });
  return static_cast<std::size_t>(slots_.rend() - last);
}

/// Within another checkpointed forward, unpacking an input runs the outer forward again.
Fields CheckpointFrame::inputs_again() const {
  std::size_t place = 0;
  return names_.map([&](const at::Tensor&) {
    const Input& kept = inputs_[place++];
    const std::optional<at::Tensor> itself = kept.saved.get_raw_data();
    require(
        !itself || !itself->defined() || itself->_version() == kept.version, what_.name, ": its input ",
        batch::name_of(names_, place - 1),
        " was changed in place between its forward and its backward, which computes the forward again from "
        "it; change a copy, or change it after the backward");
    const at::Tensor input = kept.saved.unpack();
    return input.defined() ? leaf_of(input, kept.learns) : input;
  });
}

void CheckpointFrame::fill(std::size_t number, const at::Tensor& tensor) {
  Slot& slot = slots_[number];
  require(
      tensor.sizes() == slot.sizes && tensor.scalar_type() == slot.dtype && tensor.device() == slot.device,
      what_.name, " is not the same when it runs again for its backward: tensor ", number,
      " that it saves was ", in_words(slot.dtype, slot.sizes, slot.device), ", and is ",
      in_words(tensor.scalar_type(), tensor.sizes(), tensor.device()), " now", kDoTheSame);
  if (!is_missing(slot)) return;
  slot.tensor = tensor;
  slot.version = tensor._version();
}

void CheckpointFrame::run_again() {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (is_missing(slots_[i])) missing.push_back(i);
  }
  const auto give_back = [&] {
    for (const std::size_t number : missing) slots_[number].tensor.reset();
  };
  Again again(*this);
  const Leaving none_yet;
  try {
    const Fields inputs = inputs_again();
    const ForwardRecord::Replaying replaying(record_, what_.buffers);
    const at::AutoGradMode with_graph(true);
    const SavedTensorsScope scope(again);
    what_.forward(inputs);
  } catch (const LastIsThere&) {
  } catch (...) {
    give_back();
    throw;
  }
  if (again.is_done()) return;
  give_back();
  throw InvalidArgument(text(what_.name, " is not the same when it runs again for its backward: it saves ",
                             again.num_saved(), " tensors, and saved ", slots_.size(), " when it ran first",
                             kDoTheSame));
}

}  // namespace trireme::model
