#pragma once
// The plan of a run: its configuration on a number of ranks, decided. Every text of the configuration that
// says how the ranks compute is read here, once, and what cannot work is refused with the reason and the
// nearest plan that does. Whoever carries a run out (trainer, verify, resume, timeline, command line) takes a
// plan, and resolve_plan() alone makes one: a program of one's own goes through the checks of the command
// line. A value: it holds no tensor, talks to no rank, and may be shared by threads that only read it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/mesh_shape.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/parallel/tensor/tensor_form.h"
#include "trireme/schedule/program.h"
#include "trireme/telemetry/trace.h"
#include "trireme/train/config/precision.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/parts/convolutions.h"

namespace trireme::data {
enum class Balance;
}

namespace trireme::train {

/// What stages are to be alike in.
enum class Partition { kTime, kParameters, kLayers };

/// What a plan has to know of a model.
struct ModelShape {
  std::string name;                ///< for messages
  std::vector<double> parameters;  ///< how many each layer has; empty: the model cannot be cut
  /// What bounds the ranks that its layers are cut over; none: they cannot be cut.
  std::optional<parallel::TensorLimits> tensor = std::nullopt;
  std::int64_t experts = 0;  ///< of each layer that has some; 0: none has
};

class ParallelPlan {
 public:
  /// What it was made of. For numbers and for names that a module's own table is asked for once; texts that
  /// decide how ranks compute are decided below. Of cuts that were measured it has the result.
  const RunConfig& config() const { return config_; }

  int world_size() const { return world_size_; }
  /// The ranks along the axes of base/mesh_axes.h, without those along which there is one rank, but "pp" and
  /// "dp".
  MeshShape mesh() const;
  /// That read samples of their own: along "dp", and along "ep".
  int num_replicas() const { return num_replicas_; }
  int pipeline_ranks() const { return world_size_ / weight_copies() / tensor_ranks(); }
  /// Ranks that hold parts of the same layers.
  int tensor_ranks() const { return static_cast<int>(config_.parallel.tensor); }
  /// Ranks that hold the same weights, and pieces of the same sequences.
  int context_ranks() const { return static_cast<int>(config_.parallel.context); }
  /// Replicas that share out the experts of the same layers.
  int expert_ranks() const { return static_cast<int>(config_.parallel.expert); }
  /// Ranks that hold the same weights, but those of experts: their gradients are summed, and ZeRO shares them
  /// out.
  int weight_copies() const { return num_replicas_ * context_ranks(); }
  /// Whether ranks compute a form of the model (parallel/tensor/tensor_form.h), of parts of layers or
  /// sequences.
  bool has_form() const { return tensor_ranks() > 1 || context_ranks() > 1; }
  /// Whether the model has several stages, on several ranks or one behind the other on each.
  bool is_cut() const { return program_.num_stages > 1; }

  /// What the ranks of one pipeline do in a step, transfers included, as over a transport that buffers; in an
  /// asynchronous schedule in one update, from the start until it is drained.
  const schedule::Program& program() const { return program_; }
  /// Whether stages update while micro-batches are under way.
  bool asynchronous() const { return program_.update_every > 0; }
  /// Ranks of each stage, where micro-batches go to them in turn (1f1b-rr); empty: one each.
  const std::vector<int>& replicas_of_stages() const { return options_.replicas; }
  /// Micro-batches of one replica in a step.
  int num_microbatches() const { return num_microbatches_; }
  /// Of all replicas.
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

  /// Where ranks compute; which of the devices of that kind is a rank's, its Context says.
  c10::DeviceType device() const { return device_; }
  const Precision& precision() const { return precision_; }
  const ConvolutionRule& convolutions() const { return convolutions_; }
  /// What replicas share out.
  parallel::ZeroStage zero() const { return options_.zero.stage; }
  /// Whether what is updated lies in pieces on the replicas.
  bool is_sharded() const { return zero() != parallel::ZeroStage::kNone && weight_copies() > 1; }
  /// Copies that share out among them what each would hold: all, or those of a group.
  int shard_ranks() const {
    const std::int64_t asked = config_.parallel.shard_ranks;
    return asked == 0 ? weight_copies() : static_cast<int>(asked);
  }
  /// Whether there are several groups, each of which has all of the state.
  bool has_shard_groups() const { return is_sharded() && shard_ranks() < weight_copies(); }
  /// Whether what a rank updates are parts, which only all ranks together are known to hold once.
  bool is_in_parts() const { return is_sharded() || tensor_ranks() > 1 || expert_ranks() > 1; }
  /// Whether each layer of the model is to be a stage of its own, once a model is known.
  bool stages_are_layers() const;
  /// Whether servers add gradients up and update.
  bool served() const { return config_.parallel.mode == "ps"; }
  /// Whether ranks may be at different steps between two evaluations, or saves.
  bool ranks_drift() const { return served() && config_.served.staleness != 0; }
  /// Whether replicas, in sites, take steps of their own and average what they have learnt now and then.
  bool trains_apart() const { return config_.parallel.local_steps > 1; }
  /// Whether the next forward begins while gradients that it needs later are still on their way.
  bool by_need() const { return config_.parallel.priority != "none" && weight_copies() > 1; }
  /// Replicas that average gradients in every step.
  int site_ranks() const { return static_cast<int>(config_.parallel.local_ranks); }
  int num_sites() const { return num_replicas_ / site_ranks(); }
  /// Whether bits do not depend on how ranks share out micro-batches, layers and optimizer.
  bool exact() const { return config_.run.exact; }
  /// Whether any state lives elsewhere than in memory.
  bool offloads() const { return offloads_state() || offloads_parameters(); }
  bool offloads_state() const { return config_.offload.optimizer != "none"; }
  bool offloads_parameters() const { return config_.offload.parameters != "none"; }
  bool offloads_activations() const { return config_.offload.activations != "none"; }
  /// Whether replicas compute with weights that were rounded on their way.
  bool rounds_weights() const { return is_sharded() && config_.parallel.weight_compression != "none"; }
  /// Whether stages compute with activations that were rounded on their way.
  bool rounds_activations() const {
    return config_.parallel.pipeline > 1 && config_.parallel.activation_compression != "none";
  }
  /// How a global batch is dealt to replicas.
  data::Balance balance() const;
  /// How far gradients are rounded when they travel.
  const parallel::GradientRounding& rounding() const { return rounding_; }
  /// A step whose gradients are no numbers is left out; else it ends the run.
  bool skips_non_finite() const { return skips_non_finite_; }
  /// Which steps a trace, or a timeline, takes.
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
  void check_tensor_form(const ModelShape& model) const;
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
/// what cannot work together, with the reason and, where one is found, the changed keys of the nearest plan
/// that works; DataError: the file. Not collective.
ParallelPlan resolve_plan(const RunConfig& config, int world_size,
                          const std::optional<ModelShape>& model = std::nullopt);

/// As many as the configuration names; where it leaves the replicas open, the fewest that it fits.
std::int64_t least_ranks(const RunConfig& config);

/// Whether stages of that configuration update while micro-batches are under way; opens no file. Throws
/// InvalidArgument: an unknown schedule.
bool updates_under_way(const RunConfig& config);

/// The plan, after it was tried on the configuration's data and model, before any rank is started: samples
/// and targets that the model or the loss cannot take, a model that cannot be cut so, a warm-up longer than
/// the run, fewer samples than ranks. Throws InvalidArgument, DataError.
ParallelPlan check_run_config(const RunConfig& config, int world_size);

}  // namespace trireme::train
