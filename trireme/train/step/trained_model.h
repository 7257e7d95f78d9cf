#pragma once
// The model of a trainer as this rank computes it, and its trainable parameters. A value; tensors are shared.

#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/checkpoint/shard.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/optim/offload.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/tensor/tensor_parallel_model.h"
#include "trireme/train/step/shard_specs.h"

namespace trireme::train {

struct TrainedModel {
  parallel::TensorParallelOptions form_options;
  parallel::TensorParallelModel form;  ///< where layers or sequences are cut; else of the whole model
  std::shared_ptr<const objective::Objective> objective;
  double count_of_sample = 1;  ///< of the objective, where targets of all samples count alike
  c10::Device device = c10::kCPU;
  std::vector<model::Layer> layers;  ///< that the stages of the pipeline are made of

  model::Model& module() const { return *form.model; }
  /// Whether layers or sequences are split over ranks.
  bool is_model_parallel() const { return form_options.group.size() > 1 || form_options.context; }
  /// True on one rank of those that hold parts of the same layers, or pieces of the same sequences: it
  /// reports their results.
  bool reports() const {
    return form_options.group.rank() == 0 && (!form_options.context || form_options.context->rank() == 0);
  }
  /// The same for the loss: losses of pieces of sequences add up.
  bool reports_loss() const { return objective->class_loss() ? form_options.group.rank() == 0 : reports(); }
  /// Of a micro-batch: its sum over targets, a scalar.
  at::Tensor loss_of(const Fields& outputs, const Fields& targets) const;
};

/// The parameters of this rank that an optimizer updates.
struct UpdatedParameters {
  optim::NamedTensors all;  ///< whole ones or, where replicas shard them, pieces; in the model's order
  /// Those whose gradients decide clipping and skipping: all, or with exact sums the whole weights.
  optim::NamedTensors clip_parameters;
  ShardSpecs held;                          ///< the parts of a whole among them
  std::shared_ptr<optim::Offload> offload;  ///< null: they and their state are in memory
  std::shared_ptr<const checkpoint::OffloadedStorage> offloaded_storage;  ///< the same, for shards
};

}  // namespace trireme::train
