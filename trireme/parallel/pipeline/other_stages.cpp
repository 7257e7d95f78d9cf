#include "trireme/parallel/pipeline/internal/other_stages.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <mutex>

#include "trireme/parallel/zero/internal/released_parameter.h"

namespace trireme::parallel {

/// A parameter without its values. All pipelines that have released it share one object; its destructor
/// restores the values.
class OtherStages::Taken {
 public:
  Taken(at::Tensor parameter, const at::Tensor& instead)
      : parameter_(std::move(parameter)), values_(parameter_.detach()) {
    put(instead);
  }
  ~Taken() {
    if (values_.defined()) put(values_);
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  void free() { values_.reset(); }

  /// The object for that parameter; null if no pipeline has released it.
  static std::shared_ptr<Taken> find(const at::Tensor& parameter) {
    const auto found = all().find(parameter.unsafeGetTensorImpl());
    return found == all().end() ? nullptr : found->second.lock();
  }
  static std::shared_ptr<Taken> make(const at::Tensor& parameter, const at::Tensor& instead) {
    std::erase_if(all(), [](const auto& each) { return each.second.expired(); });
    auto taken = std::make_shared<Taken>(parameter, instead);
    all()[parameter.unsafeGetTensorImpl()] = taken;
    return taken;
  }
  /// For find() and make().
  static std::mutex& mutex() {
    static auto* const kMutex = new std::mutex;
    return *kMutex;
  }

 private:
  static std::map<const at::TensorImpl*, std::weak_ptr<Taken>>& all() {
    static auto* const kAll = new std::map<const at::TensorImpl*, std::weak_ptr<Taken>>;
    return *kAll;
  }

  void put(const at::Tensor& values) {
    const at::NoGradGuard no_grad;
    const ReleasedParameterAccess access;
    parameter_.set_data(values);
  }

  at::Tensor parameter_, values_;
};

void OtherStages::take(const std::string& name, const at::Tensor& parameter) {
  const std::lock_guard lock(Taken::mutex());
  if (auto taken = Taken::find(parameter)) {
    taken_.push_back(std::move(taken));
    return;
  }
  if (sizes_on_other_stage(parameter)) return;
  const at::Tensor instead = parameter_of_other_stage(name, parameter);
  if (instead.defined()) taken_.push_back(Taken::make(parameter, instead));
}

void OtherStages::free() {
  for (const auto& each : taken_) each->free();
  taken_.clear();
}

}  // namespace trireme::parallel
