#include "trireme/train/parts/internal/compression.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/parallel/data/hook_state_copy.h"
#include "trireme/parallel/zero/shard_hook.h"
#include "trireme/train/parts/internal/replica_rows.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

using Parallel = ParallelOptions;

/// Whether velocities of the compression replace the optimizer's momentum (Lin et al., section 3.1). With
/// another optimizer than SGD, "dgc" is error feedback only.
bool corrects_momentum(const RunConfig& config) {
  return parallel::has_own_momentum(config.parallel.compression) && config.optimizer.name == "sgd";
}

template <class RejectIf>
void check_one_bit(const ParallelPlan& plan, const RejectIf& reject_if) {
  const RunConfig& config = plan.config();
  if (!parallel::compresses_momentum(config.parallel.compression)) return;
  const std::string& optimizer = config.optimizer.name;
  reject_if(optimizer != "adam" && optimizer != "adamw" && optimizer != "lamb",
            set(&RunConfig::optimizer, &optim::OptimizerOptions::name, "adamw"),
            "it is the momentum of adam, adamw or lamb that travels; found optimizer.name = \"", optimizer,
            "\"");
  reject_if(
      config.parallel.compression_warmup_steps == 0,
      set(&RunConfig::parallel, &Parallel::compression_warmup_steps, 1000),
      "the mean square of gradients is measured in parallel.compression_warmup_steps, and kept from then "
      "on: 15 to 25 % of all steps; found 0");
  reject_if(
      config.train.clip_norm > 0, set(&RunConfig::train, &TrainOptions::clip_norm, 0),
      "train.clip_norm = ", config.train.clip_norm,
      " clips what arrives, and that is the change of a rounded momentum: its norm is not the gradients'");
  reject_if(config.offload.optimizer != "none",
            set(&RunConfig::offload, &optim::OffloadOptions::optimizer, "none"), "offload.optimizer = \"",
            config.offload.optimizer, "\" has the momentum elsewhere than in memory");
}

void check_local_clipping(const RunConfig& config) {
  const Parallel& parallel = config.parallel;
  if (parallel.compression_clip_norm == 0) return;
  const auto reject_if = [&](bool found, const Fix& fix, const auto&... reason) {
    if (found)
      throw PlanError(
          text("parallel.compression_clip_norm = ", parallel.compression_clip_norm, ": ", reason...),
          {fix, set(&RunConfig::parallel, &Parallel::compression_clip_norm, 0)});
  };
  reject_if(!parallel::has_own_momentum(parallel.compression),
            set(&RunConfig::parallel, &Parallel::compression, "dgc"),
            "it is \"dgc\" that clips what each rank hands in; found parallel.compression = \"",
            parallel.compression, "\", with which train.clip_norm does what is wanted");
  reject_if(parallel.pipeline > 1, set(&RunConfig::parallel, &Parallel::pipeline, 1),
            "parallel.pipeline = ", parallel.pipeline,
            ": a rank has the gradients of its own stages, and the norm is that of all");
  reject_if(parallel.zero > 0, set(&RunConfig::parallel, &Parallel::zero, 0),
            "parallel.zero = ", parallel.zero,
            ": sharded gradients are sent as they are computed, and the norm is that of all");
  reject_if(parallel.chunks > 1, set(&RunConfig::parallel, &Parallel::chunks, 0),
            "parallel.chunks = ", parallel.chunks,
            ": stages are reduced one by one, and the norm is that of all gradients");
}

}  // namespace

void check_compression(const ParallelPlan& plan) {
  const RunConfig& config = plan.config();
  check_local_clipping(config);
  if (!plan.rounding().is_lossy) return;
  const Fix none = set(&RunConfig::parallel, &Parallel::compression, "none");
  const auto reject_if = [&](bool found, const Fix& fix, const auto&... reason) {
    if (found)
      throw PlanError(text("parallel.compression = \"", config.parallel.compression, "\": ", reason...),
                      {fix, none});
  };
  check_one_bit(plan, reject_if);
  reject_if(corrects_momentum(config) && *config.optimizer.nesterov,
            set(&RunConfig::optimizer, &optim::OptimizerOptions::nesterov, false),
            "with optimizer.name = \"sgd\" its velocities are those of momentum as it is; found "
            "optimizer.nesterov = true");
}

void check_compression_of_shards(const ParallelPlan& plan) {
  const Parallel& parallel = plan.config().parallel;
  reject_unless(parallel.zero > 0 || parallel.weight_compression == "none",
                {set(&RunConfig::parallel, &Parallel::weight_compression, "none"),
                 set(&RunConfig::parallel, &Parallel::zero, 3)},
                "parallel.weight_compression = \"", parallel.weight_compression,
                "\" with parallel.zero = 0: each rank has all weights, and nothing is gathered; set "
                "parallel.zero, or leave it out");
  if (parallel.zero == 0 || parallel.compression == "none") return;
  const std::string what = text("parallel.zero = ", parallel.zero, " with parallel.compression = \"",
                                parallel.compression, "\": ");
  const Fix none = set(&RunConfig::parallel, &Parallel::compression, "none"),
            no_shards = set(&RunConfig::parallel, &Parallel::zero, 0);
  const std::vector<std::string> known = parallel::shard_hook_names();
  reject_unless(
      std::ranges::find(known, parallel.compression) != known.end(),
      {set(&RunConfig::parallel, &Parallel::compression, "sign"), no_shards}, what,
      "the whole momentum is sent, and that is sharded over ranks; these can be had: ", join(known, ", "));
  reject_unless(
      !corrects_momentum(plan.config()) || plan.num_microbatches() == 1 || parallel.zero == 1 ||
          parallel.keep_gradients,
      {set(&RunConfig::parallel, &Parallel::keep_gradients, true), none}, what, "each of ",
      plan.num_microbatches(),
      " micro-batches is reduced by itself, and its velocity advances with each reduction, not with "
      "each step; set parallel.keep_gradients, or parallel.zero = 1");
  reject_unless(parallel.shard_ranks == 0, {set(&RunConfig::parallel, &Parallel::shard_ranks, 0), none}, what,
                "parallel.shard_ranks = ", parallel.shard_ranks,
                " shards gradients within groups of replicas, without compression; leave one of the two out");
}

parallel::CompressionOptions compression_options(const RunConfig& config) {
  parallel::CompressionOptions options;
  options.name = config.parallel.compression;
  options.fraction = config.parallel.compression_fraction;
  options.warmup_steps = config.parallel.compression_warmup_steps;
  options.rank = config.parallel.compression_rank;
  options.scope = config.parallel.compression_scope;
  options.clip_norm = config.parallel.compression_clip_norm;
  options.momentum = parallel::compresses_momentum(options.name) ? config.optimizer.beta1
                     : corrects_momentum(config)                 ? *config.optimizer.momentum
                                                                 : 0;
  options.seed = static_cast<std::uint64_t>(config.run.seed);
  return options;
}

std::string compression_in_words(const RunConfig& config) {
  const std::string& name = config.parallel.compression;
  if (!parallel::has_own_momentum(name) || corrects_momentum(config)) return name;
  return text(name, " (without momentum correction: ", config.optimizer.name, " has moments of its own)");
}

optim::OptimizerOptions optimizer_options(const ParallelPlan& plan) {
  optim::OptimizerOptions options = plan.config().optimizer;
  const ParallelOptions& parallel = plan.config().parallel;
  if (plan.weight_copies() == 1) return options;
  if (corrects_momentum(plan.config())) options.momentum = 0;
  if (parallel::compresses_momentum(parallel.compression))
    options.variance_steps = parallel.compression_warmup_steps;
  return options;
}

namespace {

constexpr const char* kPieces = "pieces/";
constexpr const char* kOwn = "own/";

/// Of any shape, as one row.
at::Tensor flat_row(const at::Tensor& tensor) { return tensor.view({1, tensor.numel()}); }

/// State of the hook of gradient reductions: residuals of compression, velocities. In a checkpoint, the own
/// state of each replica is a row of one tensor.
class GradientCompression final : public StepPart {
 public:
  explicit GradientCompression(const PartSetup& setup)
      : name_(setup.plan.config().parallel.compression),
        prefix_(text(checkpoint::kOptimizerPrefix, "compression/", name_, "/")),
        replica_(setup.groups.replicas ? setup.groups.replicas->rank() : 0),
        weight_copies_(setup.plan.weight_copies()),
        skips_steps_(setup.plan.skips_non_finite()),
        context_(setup.context) {}

  void configure(PipelineSetup& setup) override {
    hook_ = setup.options.data_parallel.hook;
    if (hook_ && skips_steps_) before_step_.emplace(hook_);
  }
  void attach(const TrainerObjects& objects) override {
    if (hook_) hook_->attach_optimizer(objects.optimizer.state());
    if (objects.plan.rounds_weights() && context_.is_main() &&
        objects.groups.has_common_weights(objects.plan, objects.model.device))
      context_.log().info("parallel.weight_compression = \"",
                          objects.plan.config().parallel.weight_compression,
                          "\" does nothing here: the ranks have one copy of the weights in memory that they "
                          "have in common, and gather nothing");
  }
  void begin_stream(parallel::Pipeline::Stream& stream, std::int64_t /*steps_done*/) override {
    if (!hook_) return;
    hook_->set_gradient_scale(stream.gradient_scale);
    if (before_step_) before_step_->take();
  }
  /// The host must know of skips: it has the scale of compressed gradients, and restores their residuals.
  bool asks_for_skips() const override { return before_step_ && name_ != "none"; }
  void skipped(Step& /*step*/) override {
    if (before_step_) before_step_->bring_back();
  }
  /// Hooks change the state in every backward.
  void add_state(StateParts& state) override {
    if (!hook_ && weight_copies_ > 1) return;
    StatePart part{.prefix = prefix_, .changes = ChangesIn::kBackward};
    if (hook_) part.shards = shards();
    part.restore = [this](const StoredSizes& stored) { return restore(stored); };
    state.push_back(std::move(part));
  }
  void count(StepCounters& counters) const override {
    if (hook_) counters.sent_bytes += hook_->sent_bytes();
  }
  void summarize(RunResult& result) const override {
    if (hook_) result.found_by_reduction = hook_->found();
  }

 private:
  /// The row of this rank's own state, and the number of rows: replicas, or hosts.
  struct Rows {
    std::int64_t index, number;
  };
  Rows rows_of(const parallel::HookState& state) const {
    if (state.of_host.num_hosts > 0) return {state.of_host.host, state.of_host.num_hosts};
    return {replica_, weight_copies_};
  }
  /// The whole tensor is the same for any distribution of its pieces over ranks.
  checkpoint::Shard piece_shard(const parallel::HookState::Piece& piece) const {
    return {.name = prefix_ + kPieces + piece.name,
            .global_sizes = {piece.numel},
            .offsets = {piece.begin},
            .tensor = piece.tensor};
  }
  checkpoint::Shards shards() const;
  Restoration restore(const StoredSizes& stored);
  void warn_of_loss(const StoredSizes& stored) const;

  const std::string name_, prefix_;
  const std::int64_t replica_, weight_copies_;
  const bool skips_steps_;
  comm::Context& context_;
  std::shared_ptr<parallel::CommHook> hook_;            ///< null: this rank does not reduce gradients
  std::optional<parallel::HookStateCopy> before_step_;  ///< if steps may be skipped
};

checkpoint::Shards GradientCompression::shards() const {
  const parallel::HookState state = hook_->state();
  checkpoint::Shards shards;
  for (const auto& [name, tensor] : state.common)
    shards.push_back(checkpoint::whole_shard(prefix_ + name, tensor));
  const Rows rows = rows_of(state);
  for (const auto& [name, tensor] : state.own)
    shards.push_back(row_shard(prefix_ + kOwn + name, flat_row(tensor), rows.index, rows.number));
  for (const auto& piece : state.pieces) {
    if (piece.tensor.numel() > 0) shards.push_back(piece_shard(piece));
  }
  return shards;
}

void GradientCompression::warn_of_loss(const StoredSizes& stored) const {
  if (!context_.is_main()) return;
  context_.log().warning("parallel.compression = \"", name_, "\" compresses nothing on one rank: what ",
                         std::max<std::int64_t>(1, stored_rows(prefix_ + kOwn, stored)),
                         " ranks have left out of gradients so far is dropped; to keep it, resume with 2 "
                         "ranks or more");
}

/// Restores also from another number of replicas. Rows of replicas that no longer exist are added to others,
/// so that the sum stays. Nothing is restored if the checkpoint has no state of this compression.
Restoration GradientCompression::restore(const StoredSizes& stored) {
  const bool is_there =
      std::ranges::any_of(stored, [&](const auto& each) { return each.first.starts_with(prefix_); });
  if (!hook_ || !is_there || weight_copies_ == 1) {
    if (is_there && weight_copies_ == 1) warn_of_loss(stored);
    return {.shards = {}, .finish = [hook = hook_] {
              if (hook) hook->restored();
            }};
  }
  const parallel::HookState state = hook_->state();
  const Rows rows = rows_of(state);
  Restoration restoration;
  std::set<std::string> pieces;
  for (const auto& piece : state.pieces) {
    pieces.insert(piece.name);
    if (stored.contains(prefix_ + kPieces + piece.name) && piece.tensor.numel() > 0)
      restoration.shards.push_back(piece_shard(piece));
  }
  for (const auto& [name, tensor] : state.common)
    restoration.shards.push_back(checkpoint::whole_shard(prefix_ + name, tensor));
  // Residuals of sums, if ranks no longer keep them in pieces. They are added to the first rank's own state.
  struct LeftOver {
    at::Tensor of, stored;
  };
  std::vector<LeftOver> left_over;
  StoredRows own;
  for (const auto& [name, tensor] : state.own) {
    const auto found = stored.find(prefix_ + kOwn + name);
    own.add(prefix_ + kOwn + name, flat_row(tensor), rows.index, rows.number,
            found == stored.end() ? 0 : found->second.at(0));
    const std::string in_pieces = "sums_" + name;
    if (rows.index > 0 || pieces.contains(in_pieces) || !stored.contains(prefix_ + kPieces + in_pieces))
      continue;
    left_over.push_back({.of = flat_row(tensor)[0], .stored = at::empty({tensor.numel()}, tensor.options())});
    restoration.shards.push_back(
        checkpoint::whole_shard(prefix_ + kPieces + in_pieces, left_over.back().stored));
  }
  restoration.shards.insert(restoration.shards.end(), own.shards().begin(), own.shards().end());
  restoration.finish = [hook = hook_, own, left_over] {
    const at::NoGradGuard no_grad;
    own.take_sums();
    for (const LeftOver& each : left_over) at::Tensor(each.of).add_(each.stored);
    hook->restored();
  };
  return restoration;
}

}  // namespace

std::unique_ptr<StepPart> make_gradient_compression(const PartSetup& setup) {
  return std::make_unique<GradientCompression>(setup);
}

}  // namespace trireme::train
