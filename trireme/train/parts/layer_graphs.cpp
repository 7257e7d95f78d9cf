// train.graph: the forward and backward of layers are captured once and replayed (CUDA graphs).
#include <c10/core/impl/VirtualGuardImpl.h>

#include "trireme/base/error.h"
#include "trireme/model/skips.h"
#include "trireme/parallel/graphed_layer.h"
#include "trireme/parallel/on_stream.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

using parallel::GraphUse;

class LayerGraphs final : public StepPart {
 public:
  explicit LayerGraphs(const PartSetup& setup)
      : context_(setup.context),
        model_(setup.model),
        use_(parallel::graph_use_of(setup.plan.config().train.graph)),
        device_(setup.device),
        guard_(device_.type()),
        stream_(guard_.getStreamFromGlobalPool(device_)),
        scope_(guard_.getStream(device_), stream_) {}

  /// Replicas reduce the gradients of a layer as soon as its backward has ended. So with replicas, a model
  /// without a pipeline is captured layer by layer.
  void configure(PipelineSetup& setup) override {
    const bool has_replicas = setup.groups.data && setup.groups.data->size() > 1;
    if (!setup.plan.is_cut() && has_replicas) {
      std::vector<model::Layer> chain = layers_in(setup.plan.precision(), model_, setup.plan.device());
      if (!chain.empty()) {
        capture(chain);
        setup.layers.front().forward = model::forward_of_chain(std::move(chain));
        return;
      }
    }
    capture(setup.layers);
  }
  /// Restores the stream if another trainer of this thread has changed it.
  std::shared_ptr<void> compute_scope() override {
    if (guard_.getStream(device_) == stream_) return nullptr;
    return std::make_shared<parallel::OnStream>(guard_.getStream(device_), stream_);
  }
  void end_step(Step& step) override {
    if (!says_first_graph_ && counts_->num_graphs > 0) {
      says_first_graph_ = true;
      if (context_.is_main())
        context_.log().info("train.graph: layers are captured in graphs of the device from step ",
                            step.report.step, " on");
    }
    if (!says_why_not_ && !counts_->why_not.empty()) {
      says_why_not_ = true;
      context_.log().info("train.graph: not captured: ", counts_->why_not);
    }
  }

 private:
  void capture(std::vector<model::Layer>& layers) const {
    for (model::Layer& layer : layers)
      layer = parallel::graphed(std::move(layer), device_, {.use = use_}, counts_);
  }

  comm::Context& context_;
  model::Model& model_;
  const GraphUse use_;
  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream stream_;
  const parallel::OnStream scope_;  ///< of the trainer's thread, while the trainer lives
  const std::shared_ptr<parallel::GraphCounts> counts_ = std::make_shared<parallel::GraphCounts>();
  bool says_first_graph_ = false, says_why_not_ = false;
};

/// Empty: layers can be captured.
std::string obstacle(const PartSetup& setup) {
  RunConfig asked = setup.plan.config();
  asked.train.graph = "on";
  try {
    resolve_plan(asked, setup.plan.world_size());
  } catch (const InvalidArgument& conflict) {
    return conflict.what();
  }
  return comm::graphs_unavailable_because(setup.device);
}

}  // namespace

std::unique_ptr<StepPart> make_layer_graphs(const PartSetup& setup) {
  const GraphUse use = parallel::graph_use_of(setup.plan.config().train.graph);
  if (use == GraphUse::kOff) return nullptr;
  const std::string reason = obstacle(setup);
  if (reason.empty()) return std::make_unique<LayerGraphs>(setup);
  require(use != GraphUse::kOn, "train.graph = \"on\": ", reason, "; take \"auto\" or \"off\"");
  if (setup.context.is_main()) setup.context.log().info("train.graph: layers run as they are: ", reason);
  return nullptr;
}

}  // namespace trireme::train
