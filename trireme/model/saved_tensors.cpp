#include "trireme/model/internal/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>

#include <mutex>

namespace trireme::model {
namespace {

thread_local SavedTensorKeeper* keeper_here = nullptr;

class EngineWithKeepers : public torch::autograd::Engine {
 public:
  /// Lives as long as the process: its threads do, and end in no order that could be waited for.
  static Engine& only() {
    static auto* const engine = new EngineWithKeepers();
    return *engine;
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return keeper_here == nullptr ? nullptr : keeper_here->hooks();
  }

 private:
  EngineWithKeepers() = default;
};

void put_engine_in_place() {
  static std::once_flag once;
  std::call_once(once, [] { torch::autograd::set_default_engine_stub(&EngineWithKeepers::only); });
}

}  // namespace

SavedTensorsScope::SavedTensorsScope(SavedTensorKeeper& keeper) : before_(keeper_here) {
  put_engine_in_place();
  keeper_here = &keeper;
}

SavedTensorsScope::~SavedTensorsScope() { keeper_here = before_; }

}  // namespace trireme::model
