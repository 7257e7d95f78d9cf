#include "trireme/optim/wrapped_parameter.h"

#include <utility>

namespace trireme::optim {
namespace {

struct Mark final : c10::BackendMeta {
  explicit Mark(std::weak_ptr<const Wrapper> of) : wrapper(std::move(of)) {}
  const std::weak_ptr<const Wrapper> wrapper;
};

}  // namespace

void mark_wrapped(const at::Tensor& parameter, const std::shared_ptr<const Wrapper>& wrapper) {
  parameter.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<Mark>(wrapper));
}

std::shared_ptr<const Wrapper> wrapper_of(const at::Tensor& parameter) {
  const auto* mark = dynamic_cast<const Mark*>(parameter.unsafeGetTensorImpl()->get_backend_meta());
  return mark == nullptr ? nullptr : mark->wrapper.lock();
}

}  // namespace trireme::optim
