#include "trireme/model/internal/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>

#include <mutex>
#include <utility>

namespace trireme::model {
namespace {

/// A shared or an intrusive pointer, depending on the version of libtorch.
using NodePtr = decltype(torch::autograd::Edge::function);

thread_local SavedTensorKeeper* keeper_here = nullptr;

/// Runs every backward in libtorch's engine. That engine may have started the device threads already, and a
/// process starts them only once.
class EngineWithKeepers : public torch::autograd::Engine {
 public:
  /// Never destroyed: backwards of other threads may still run at the end of the process.
  static Engine& only() {
    static auto* const engine = new EngineWithKeepers();
    return *engine;
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return keeper_here == nullptr ? nullptr : keeper_here->hooks();
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task, NodePtr graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return get_base_engine().execute_with_graph_task(graph_task, std::move(graph_root),
                                                     std::move(input_buffer));
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
