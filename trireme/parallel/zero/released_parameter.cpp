#include "trireme/parallel/zero/internal/released_parameter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::parallel {
namespace {

// libtorch registers nothing for this key, and gives it to no tensor of its own. It comes before
// autocast and autograd.
constexpr auto kReleased = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

void drop_name(void* name) { delete static_cast<std::string*>(name); }

/// The tensor carries it where others have their memory. Null: it is no released parameter.
const std::string* name_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kReleased) || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  return memory.get_deleter() == &drop_name ? static_cast<const std::string*>(memory.get_context()) : nullptr;
}

const std::string* name_in(const c10::IValue& argument) {
  if (argument.isTensor()) return name_of(argument.toTensor());
  if (!argument.isList()) return nullptr;
  for (const c10::IValue& item : argument.toListRef()) {
    if (const std::string* name = name_in(item)) return name;
  }
  return nullptr;
}

void refuse(const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  const std::string* name = nullptr;
  for (const c10::IValue& argument : *stack) {
    if (name == nullptr) name = name_in(argument);
  }
  throw InvalidArgument(
      text("parameter '", name == nullptr ? "?" : *name, "' is used (", called.schema().name(),
           ") while it is not gathered: with parallel.zero = 3 a parameter is there while the stage computes "
           "whose layers list it, and nowhere else. Use it in forward() of those layers only; or list it in "
           "the layer that needs it, too (make_layer: `modules`), and it stays whole on every rank; or train "
           "with parallel.zero = 2"));
}

/// Once for the process, and for good.
void install() {
  static const std::unique_ptr<torch::Library> library = [] {
    auto made = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kReleased, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
    return made;
  }();
}

}  // namespace

at::Tensor released_parameter(const std::string& name, const at::Tensor& like) {
  at::Tensor empty = at::empty({0}, like.options().requires_grad(false));
  if (!empty.is_cpu() && !empty.is_cuda()) return empty;
  install();
  c10::DataPtr nothing(nullptr, new std::string(name), &drop_name, empty.device());
  return at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, std::move(nothing)), empty.key_set().add(kReleased),
      empty.dtype());
}

ReleasedParameterAccess::ReleasedParameterAccess() : guard_(kReleased) {}

}  // namespace trireme::parallel
