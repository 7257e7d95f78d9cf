#pragma once
// The plan of a run: its configuration on a number of ranks, resolved. All settings that decide how the ranks
// compute are read here, once. A configuration that cannot work is rejected with the reason and the nearest
// plan that does. Code that executes a run (trainer, verify, resume, timeline, command line) takes a plan,
// and only resolve_plan() makes one. So custom programs pass the same checks as the command line. A value: it
// holds no tensor and does no communication. Threads that only read it may share it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/mesh_shape.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/parallel/tensor/tensor_parallel_model.h"
#include "trireme/schedule/program.h"
#include "trireme/telemetry/trace.h"
#include "trireme/train/config/precision.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/parts/convolutions.h"

namespace trireme::data {
enum class Balance;
}

namespace trireme::train {

/// The quantity that the cuts of a pipeline balance.
enum class Partition { kTime, kParameters, kLayers };

/// The properties of a model that a plan needs.
struct ModelShape {
  std::string name;                ///< for messages
  std::vector<double> parameters;  ///< how many each layer has; empty: the model cannot be cut
  /// Limits of tensor and context parallelism; none: the layers cannot be split.
  std::optional<parallel::TensorLimits> tensor = std::nullopt;
  std::int64_t experts = 0;  ///< of each layer with experts; 0: there are none
};

class ParallelPlan {
 public:
  /// The source configuration, with the result of measured cuts. Read numbers and names from it; modes are
  /// resolved into the functions below.
  const RunConfig& config() const { return config_; }

  int world_size() const { return world_size_; }
  /// The ranks along the axes of base/mesh_axes.h, without those along which there is one rank, but "pp" and
  /// "dp".
  MeshShape mesh() const;
  /// Groups of ranks that read different samples: along "dp" and "ep".
  int num_replicas() const { return num_replicas_; }
  int pipeline_ranks() const { return world_size_ / weight_copies() / tensor_ranks(); }
  /// Ranks over which a layer is split.
  int tensor_ranks() const { return static_cast<int>(config_.parallel.tensor); }
  /// Ranks over which a sequence is split; they hold the same weights.
  int context_ranks() const { return static_cast<int>(config_.parallel.context); }
  /// Replicas over which the experts of a layer are distributed.
  int expert_ranks() const { return static_cast<int>(config_.parallel.expert); }
  /// Ranks that hold the same weights, except those of experts: their gradients are summed, and ZeRO shards
  /// over them.
  int weight_copies() const { return num_replicas_ * context_ranks(); }
  /// Whether ranks compute the tensor-parallel implementation of the model
  /// (parallel/tensor/tensor_parallel_model.h): parts of layers or of sequences.
  bool is_model_parallel() const { return tensor_ranks() > 1 || context_ranks() > 1; }
  /// Whether the model has several stages, on several ranks or one after the other on each.
  bool is_cut() const { return program_.num_stages > 1; }

  /// Actions of the ranks of one pipeline in a step, transfers included, over a transport that buffers. In an
  /// asynchronous schedule: in one update, from the start until it is drained.
  const schedule::Program& program() const { return program_; }
  /// Whether stages update while micro-batches are in flight.
  bool asynchronous() const { return program_.update_every > 0; }
  /// Ranks of each stage, where micro-batches go to them in turn (1f1b-rr); empty: one each.
  const std::vector<int>& replicas_of_stages() const { return options_.replicas; }
  /// Micro-batches of one replica in a step.
  int num_microbatches() const { return num_microbatches_; }
  /// Micro-batches of all replicas in a step.
  std::int64_t num_parts() const { return std::int64_t{num_replicas_} * num_microbatches_; }

  /// Samples of the largest micro-batch: as many as a model takes at once, in training and in evaluation.
  std::int64_t samples_of_microbatch() const {
    const std::int64_t batch = config_.train.global_batch;
    return batch / num_parts() + (batch % num_parts() == 0 ? 0 : 1);
  }

  Partition partition() const { return partition_; }
  /// Whether cuts are open until layers were timed.
  bool measures_cuts() const {
    return is_cut() && partition_ == Partition::kTime && cuts().empty() && config_.parallel.cuts.empty();
  }
  /// First layer of each stage but the first; empty where nothing is cut, before a model is known, and for
  /// Partition::kTime before it was measured.
  const std::vector<int>& cuts() const { return options_.cuts; }
  /// With a hook of their own for each call: for one Pipeline. Without `update`.
  parallel::PipelineOptions pipeline_options() const;

  /// The kind of device of the ranks; the Context has the device of a rank.
  c10::DeviceType device() const { return device_; }
  const Precision& precision() const { return precision_; }
  const ConvolutionRule& convolutions() const { return convolutions_; }
  /// State that is sharded over the replicas.
  parallel::ZeroStage zero() const { return options_.zero.stage; }
  /// Whether the updated tensors are sharded over the replicas.
  bool is_sharded() const { return zero() != parallel::ZeroStage::kNone && weight_copies() > 1; }
  /// Copies in a shard group: all, or those of parallel.shard_ranks.
  int shard_ranks() const {
    const std::int64_t asked = config_.parallel.shard_ranks;
    return asked == 0 ? weight_copies() : static_cast<int>(asked);
  }
  /// Whether there are several shard groups, each with the whole state (HSDP).
  bool has_shard_groups() const { return is_sharded() && shard_ranks() < weight_copies(); }
  /// Whether a rank updates shards, of which only all ranks together hold each once.
  bool has_sharded_parameters() const { return is_sharded() || tensor_ranks() > 1 || expert_ranks() > 1; }
  /// Whether each layer of the model is to be a stage of its own, once a model is known.
  bool stages_are_layers() const;
  /// Whether parameter servers sum gradients and update.
  bool uses_parameter_server() const { return config_.parallel.mode == "ps"; }
  /// Whether ranks may be at different steps between two evaluations, or saves.
  bool is_stale_synchronous() const { return uses_parameter_server() && config_.served.staleness != 0; }
  /// Whether sites of replicas take local steps and average their models every parallel.local_steps steps.
  bool uses_local_sgd() const { return config_.parallel.local_steps > 1; }
  /// Whether the next forward may begin before all gradients are reduced: each layer is updated on first use.
  bool uses_lazy_updates() const { return config_.parallel.priority != "none" && weight_copies() > 1; }
  /// Replicas of a site, which average gradients in every step.
  int site_ranks() const { return static_cast<int>(config_.parallel.local_ranks); }
  int num_sites() const { return num_replicas_ / site_ranks(); }
  /// Whether results are bitwise independent of how micro-batches, layers and optimizer are distributed.
  bool exact() const { return config_.run.exact; }
  /// Whether any state is offloaded.
  bool offloads() const { return offloads_state() || offloads_parameters(); }
  bool offloads_state() const { return config_.offload.optimizer != "none"; }
  bool offloads_parameters() const { return config_.offload.parameters != "none"; }
  bool offloads_activations() const { return config_.offload.activations != "none"; }
  /// Whether replicas compute with weights that were rounded for sending.
  bool rounds_weights() const { return is_sharded() && config_.parallel.weight_compression != "none"; }
  /// Whether stages compute with activations that were rounded for sending.
  bool rounds_activations() const {
    return config_.parallel.pipeline > 1 && config_.parallel.activation_compression != "none";
  }
  /// How a global batch is divided among replicas.
  data::Balance balance() const;
  /// How gradients are rounded for sending.
  const parallel::GradientRounding& rounding() const { return rounding_; }
  /// Whether a step with gradients that are not finite is skipped; otherwise it ends the run.
  bool skips_non_finite() const { return skips_non_finite_; }
  /// The steps of a trace or timeline.
  const telemetry::TraceOptions& trace() const { return trace_; }

  /// The same plan for that model, cut where that follows from its shape. Throws InvalidArgument as
  /// resolve_plan() does.
  ParallelPlan for_model(const ModelShape& model) const;
  /// The same plan, cut there, as if its configuration named these cuts (parallel.cuts).
  ParallelPlan with_cuts(std::vector<int> cuts) const;

 private:
  friend class PlanMaker;
  ParallelPlan() = default;
  void cut(const ModelShape& model);
  void take_named_cuts(int num_layers);
  void check_tensor_parallel(const ModelShape& model) const;
  void check_context_form(const ModelShape& model) const;
  void check_experts(const ModelShape& model) const;

  RunConfig config_;
  int world_size_ = 1, num_replicas_ = 1, num_microbatches_ = 1;
  parallel::PipelineOptions options_;  ///< without a hook
  schedule::Program program_;
  Partition partition_ = Partition::kTime;
  c10::DeviceType device_ = c10::kCPU;
  Precision precision_;
  ConvolutionRule convolutions_;
  parallel::GradientRounding rounding_;
  bool skips_non_finite_ = false;
  telemetry::TraceOptions trace_;
};

/// The plan of `config` on so many ranks: for any model that can be cut so, or for `model`. Reads the program
/// of parallel.schedule where that is a file. Throws InvalidArgument: a value that its key does not allow, or
/// a conflict of settings. The message has the reason and, where one is found, the changed keys of the
/// nearest plan that works. Throws DataError: the file. Not collective.
ParallelPlan resolve_plan(const RunConfig& config, int world_size,
                          const std::optional<ModelShape>& model = std::nullopt);

/// As many as the configuration names; where it leaves the replicas open, the fewest that it fits.
std::int64_t min_ranks(const RunConfig& config);

/// Whether stages of that configuration update while micro-batches are under way; opens no file. Throws
/// InvalidArgument: an unknown schedule.
bool updates_under_way(const RunConfig& config);

/// The plan, after a trial on the configuration's data and model, before any rank is started. Throws
/// InvalidArgument or DataError: samples and targets that the model or the loss does not accept, or a model
/// without such cuts. Also a warm-up longer than the run, or fewer samples than ranks.
ParallelPlan check_run_config(const RunConfig& config, int world_size);

}  // namespace trireme::train
