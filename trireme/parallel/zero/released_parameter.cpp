#include "trireme/parallel/zero/internal/released_parameter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::parallel {
namespace {

// libtorch registers nothing for this key, and has no tensors with it. It precedes autocast and autograd.
constexpr auto kReleased = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Describes the parameter that a tensor without values replaces.
struct StandIn {
  enum class Of { kNotGathered, kReducedGradient, kOtherStage };
  std::string name;
  Of of = Of::kNotGathered;
  std::vector<std::int64_t> sizes = {};  ///< of the values, if another stage has them
};

void drop_stand_in(void* context) { delete static_cast<StandIn*>(context); }

/// The stand-in is in place of the tensor's memory. Null: it is no released parameter.
const StandIn* stand_in_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kReleased) || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& memory = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return memory.get_deleter() == &drop_stand_in ? static_cast<const StandIn*>(memory.get_context()) : nullptr;
}

const StandIn* stand_in_in(const c10::IValue& argument) {
  if (argument.isTensor()) return stand_in_of(argument.toTensor());
  if (!argument.isList()) return nullptr;
  for (const c10::IValue& item : argument.toListRef()) {
    if (const StandIn* found = stand_in_in(item)) return found;
  }
  return nullptr;
}

constexpr const char* kReleasedAdvice =
    " while it is not gathered: this rank has a part of it. With parallel.zero = 3 a parameter is there "
    "while "
    "the stage computes whose layers list it, and nowhere else. Use it in forward() of those layers only; or "
    "list it in the layer that needs it, too (make_layer: `modules`), and it stays whole on every rank; or "
    "train with parallel.zero = 2. Load and convert a module before it is wrapped; save and restore it with "
    "LoopCheckpoints and train::sharded_loop(); make an optimizer of parameters() of the wrapper";
constexpr const char* kGradientAdvice =
    ", and there is none: gradients are reduced into parameters() of the FullyShardedDataParallel or "
    "Pipeline. "
    "Make the optimizer of those parameters(), and call zero_grad() and clip_grad_norm() of that object";

constexpr const char* kStageAdvice =
    " and its layer belongs to a stage on another rank: this rank does not have its values. Compute with "
    "step() and evaluate() of the Pipeline; on each rank, save and load parameters() and buffers() of the "
    "Pipeline. Load, save and convert the module itself before the Pipeline is made";

std::string told(const StandIn* found, const std::string& use) {
  if (found == nullptr) return text("a parameter is used (", use, ")", kReleasedAdvice);
  if (found->of == StandIn::Of::kReducedGradient)
    return text("the gradient of the module's own parameter '", found->name, "' is used (", use, ")",
                kGradientAdvice);
  const bool is_released = found->of == StandIn::Of::kNotGathered;
  return text("parameter '", found->name, "' is used (", use, ")",
              is_released ? kReleasedAdvice : kStageAdvice);
}

void refuse(const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  const StandIn* found = nullptr;
  for (const c10::IValue& argument : *stack) {
    if (found == nullptr) found = stand_in_in(argument);
  }
  throw InvalidArgument(told(found, called.schema().name()));
}

/// Once per process, and permanently.
void install() {
  static const std::unique_ptr<torch::Library> library = [] {
    auto made = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kReleased, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
    return made;
  }();
}

at::Tensor stand_in(StandIn what, const at::Tensor& empty) {
  install();
  const std::string message = told(&what, "its memory");
  c10::DataPtr nothing(nullptr, new StandIn(std::move(what)), &drop_stand_in, empty.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, std::move(nothing));
  // Code that reads memory without an operator (torch::save) gets an error.
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), empty.key_set().add(kReleased),
                                                  empty.dtype());
}

bool has_room(const at::Tensor& tensor) { return tensor.is_cpu() || tensor.is_cuda(); }

}  // namespace

at::Tensor released_parameter(const std::string& name, const at::Tensor& like) {
  const at::Tensor empty = at::empty({0}, like.options().requires_grad(false));
  return has_room(empty) ? stand_in({.name = name}, empty) : empty;
}

at::Tensor reduced_gradient(const std::string& name, const at::Tensor& like) {
  const at::Tensor empty = at::empty({0}, like.options().requires_grad(false));
  return has_room(empty) ? stand_in({.name = name, .of = StandIn::Of::kReducedGradient}, empty)
                         : at::Tensor();
}

at::Tensor parameter_of_other_stage(const std::string& name, const at::Tensor& like) {
  const at::Tensor empty = at::empty({0}, like.options().requires_grad(false));
  return has_room(empty)
             ? stand_in({.name = name, .of = StandIn::Of::kOtherStage, .sizes = like.sizes().vec()}, empty)
             : at::Tensor();
}

std::optional<std::vector<std::int64_t>> sizes_on_other_stage(const at::Tensor& parameter) {
  const StandIn* found = stand_in_of(parameter);
  if (found == nullptr || found->of != StandIn::Of::kOtherStage) return std::nullopt;
  return found->sizes;
}

ReleasedParameterAccess::ReleasedParameterAccess() : guard_(kReleased) {}

}  // namespace trireme::parallel
