#pragma once
// Cuts of a pipeline and the step program of its ranks. Values; functions here are pure.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/model/layer.h"
#include "trireme/optim/offload.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/zero/zero_options.h"
#include "trireme/schedule/program.h"
#include "trireme/schedule/transport.h"

namespace trireme::parallel {

/// How a tensor's numbers are written while they travel between stages.
enum class ActivationFormat {
  kNone,  ///< as it is
  kBf16,  ///< f32 is rounded to it
  kFp16,  ///< the same
  /// int8 quantization with one scale per block of 512 (block-wise absmax): the largest magnitude becomes
  /// 127. Stochastic rounding changes each value by less than 1/127 of that magnitude, and its expectation is
  /// the value. Of f32, bf16 and fp16.
  kInt8,
};
/// Throws InvalidArgument with the nearest of activation_format_names().
ActivationFormat activation_format_of(const std::string& name);
std::vector<std::string> activation_format_names();

/// Encoding of activations between stages on different ranks, and of their gradients. Only tensors with
/// gradients are encoded.
struct ActivationCompression {
  ActivationFormat format = ActivationFormat::kNone;
  std::uint64_t seed = 0;         ///< of random numbers, besides update, micro-batch, stage and direction
  std::int64_t min_numel = 1024;  ///< smaller tensors go as they are
};

struct PipelineOptions {
  std::string schedule = "1f1b";  ///< a name of schedule::schedule_names()
  int num_microbatches = 4;       ///< of a round; of an update, where a schedule never flushes
  int num_chunks = 0;             ///< stages per rank; 0: the schedule's default
  /// How often the schedule runs before gradients are reduced and the update comes, each time over
  /// micro-batches of its own: more of them, with the memory of one round.
  int num_rounds = 1;
  std::vector<int> replicas = {};  ///< 1f1b-rr: ranks of each stage; empty: the schedule's default
  bool vertical_sync = false;      ///< pipedream: a micro-batch sees the same version on all stages
  /// A custom program (schedule::parse_csv) that replaces the named schedule: an order of computations, to
  /// which the transfers are added, or a whole step program.
  std::optional<schedule::Program> program = {};
  /// First layer of each stage but the first, in rising order. Empty: stages with about the same number of
  /// parameters.
  std::vector<int> cuts = {};
  /// Keeps only the inputs of a stage, and runs its forward again before its backward (GPipe's
  /// re-materialisation): less memory, a third more time. Dropout draws the same mask again.
  bool recompute = false;
  /// Compression of transfers between stages. Pipeline::evaluate() sends uncompressed.
  ActivationCompression activations = {};
  /// Where this rank computes: its layers and their inputs are there when it begins.
  c10::Device device = c10::kCPU;
  /// How the replicas of a stage reduce its gradients, where there are several pipelines.
  DataParallelOptions data_parallel = {};
  /// State of each stage that replicas shard.
  ZeroOptions zero = {};
  /// ZeroStage::kParameters: where each rank's parts of the parameters live between their uses; null: in
  /// memory.
  std::shared_ptr<optim::Offload> offload = nullptr;
  /// Gradients of micro-batches are added up in an order that depends only on their number, for any
  /// assignment to ranks (data/exact_sum.h). `data_parallel` is not used. For synchronous schedules whose
  /// micro-batches are a power of two; replicas hold whole gradients in any case.
  bool exact = false;
  /// Called before each computation for a micro-batch that has samples, with its number. Null: nothing.
  std::function<void(int)> before_compute = nullptr;
  /// Called before anything computes with the layers of each stage that this rank holds, one stage after the
  /// other. For layers that are made without memory (model/deferred.h): allocates them and sets their first
  /// values. Replicas shard a stage before the call for the next one.
  std::function<void(const std::vector<model::Layer>&)> materialise = nullptr;
  /// Called at the program's STEP, when all gradients of this rank are there. Null: the caller updates when
  /// step() has returned.
  std::function<void()> update = nullptr;
  /// Called for each parameter that only this rank has, as soon as its gradient is final. Runs on the thread
  /// of the last backward of a step. Null: nothing.
  std::function<void(const at::Tensor& parameter)> gradient_is_final = nullptr;
};

/// Replicas in groups of the same size. Each group shards all of the state over its ranks.
struct ShardGroups {
  comm::Group shards;  ///< this rank's group
  comm::Group
      copies;  ///< the ranks of all groups that have this rank's place in theirs, and so the same part
};

/// The ranks of this rank's pipeline, and those that hold the same stages in the other pipelines.
struct PipelineGroups {
  comm::Group pipeline;
  std::optional<comm::Group> data = {};
  /// Of `data`: the groups within which PipelineOptions::zero shards; none: over all ranks.
  std::optional<ShardGroups> shard_groups = {};
};

/// Whether the options' schedule updates in the middle of its micro-batches. Throws InvalidArgument: an
/// unknown name.
bool is_asynchronous(const PipelineOptions& options);

/// Actions of `num_ranks` ranks in a step, transfers and update included. In an asynchronous schedule: in
/// `num_updates` of them, from the start until it is drained. Throws InvalidArgument with rank and action: a
/// program that deadlocks, lacks a backward, is for other ranks or has actions that no rank can run; options
/// that conflict.
schedule::Program pipeline_program(const PipelineOptions& options, int num_ranks,
                                   schedule::Transport transport, int num_updates = 1);

}  // namespace trireme::parallel
