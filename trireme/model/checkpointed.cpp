#include "trireme/model/checkpointed.h"

#include <ATen/core/grad_mode.h>

#include <mutex>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/internal/checkpoint_frame.h"

namespace trireme::model {
namespace {

Fields run_checkpointed(CheckpointedForward what, const Fields& inputs) {
  // Without a graph, nothing is saved.
  if (!at::GradMode::is_enabled()) return what.forward(inputs);
  return std::make_shared<CheckpointFrame>(std::move(what))->run(inputs);
}

Tensors buffers_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  Tensors all;
  for (const auto& module : modules) {
    const Tensors its = module->buffers();
    all.insert(all.end(), its.begin(), its.end());
  }
  return all;
}

}  // namespace

Fields checkpointed(const std::function<Fields(const Fields&)>& forward, const Fields& inputs,
                    const CheckpointOptions& options) {
  return run_checkpointed({.name = options.name, .forward = forward, .buffers = buffers_of(options.modules)},
                          inputs);
}

Layer checkpointed(Layer layer) {
  const Layer plain = layer;
  layer.forward = [plain](const Fields& inputs) {
    return run_checkpointed({.name = text("layer '", plain.name, "'"),
                             .forward = plain.forward,
                             .buffers = model::buffers_of({plain})},
                            inputs);
  };
  return layer;
}

}  // namespace trireme::model
