#include "trireme/parallel/pipeline/asynchronous_training.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme::parallel {

AsynchronousTraining::AsynchronousTraining(comm::Context& context, const std::vector<model::Layer>& layers,
                                           const PipelineOptions& pipeline,
                                           const MakeOptimizer& make_optimizer)
    : microbatches_(pipeline.num_microbatches), pipeline_(context, layers, updating(pipeline)) {
  optimizer_ = make_optimizer(pipeline_.parameters());
}

AsynchronousTraining::AsynchronousTraining(comm::Context& context, const std::vector<model::Layer>& layers,
                                           const PipelineOptions& pipeline,
                                           const optim::OptimizerOptions& optimizer)
    : AsynchronousTraining(context, layers, pipeline, [&](const optim::NamedTensors& parameters) {
        return optim::make_optimizer(optimizer, parameters);
      }) {}

PipelineOptions AsynchronousTraining::updating(PipelineOptions options) {
  require(is_asynchronous(options), "schedule '", options.schedule,
          "' updates at the end of a step; expected pipedream, pipedream-2bw or 1f1b-rr; for others call "
          "Pipeline::step() and the optimizer");
  require(!options.update,
          "PipelineOptions::update is set, and AsynchronousTraining updates by its own "
          "optimizer; leave it out, or use Pipeline::start()");
  options.update = [this] { optimizer_->step(); };
  return options;
}

void AsynchronousTraining::run(const Run& run) {
  require(run.num_microbatches >= 1 && run.num_microbatches % microbatches_ == 0, "a run of ",
          run.num_microbatches, " micro-batches; expected a multiple of PipelineOptions::num_microbatches, ",
          microbatches_);
  // If replicas of a stage share an update, its gradients are averaged when the update runs.
  const int of_update = pipeline_.program().update_every;
  Pipeline::Stream stream{.num_updates = run.num_microbatches / microbatches_,
                          .next = run.next,
                          .shapes = run.shapes,
                          .loss = run.loss,
                          .gradient_scale = 1.0 / of_update};
  if (stream.shapes.empty()) stream.shapes = {run.next(0).input};
  pipeline_.start(std::move(stream));
  for (int update = 1; !pipeline_.drained(); ++update) {
    const double sum = pipeline_.advance(++updates_done_);
    if (run.on_update) run.on_update(update, sum / of_update);
  }
}

}  // namespace trireme::parallel
