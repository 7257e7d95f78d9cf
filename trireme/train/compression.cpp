#include "trireme/train/internal/compression.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/parallel/zero/shard_hook.h"
#include "trireme/train/internal/cures.h"
#include "trireme/train/internal/on_main.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

using Parallel = ParallelOptions;

/// Of the state of one compression: what another one has kept means nothing to it.
std::string prefix_of(const Trainer& trainer) {
  return text(kCompressionState, trainer.plan().config().parallel.compression, "/");
}

/// Whether velocities of the compression take the place of the optimizer's momentum (Lin et al.,
/// section 3.1). With another optimizer than SGD, "dgc" is error feedback alone.
bool corrects_momentum(const RunConfig& config) {
  return parallel::has_own_momentum(config.parallel.compression) && config.optimizer.name == "sgd";
}

/// Whose rows a rank's own state is, of how many: replicas', or hosts'.
struct Rows {
  std::int64_t index, number;
};
Rows rows_of(const parallel::HookState& state, const Trainer& trainer) {
  if (state.of_host.num_hosts > 0) return {state.of_host.host, state.of_host.num_hosts};
  return {trainer.replica(), trainer.plan().weight_copies()};
}

/// Of any shape, as one row.
at::Tensor flat_row(const at::Tensor& tensor) { return tensor.view({1, tensor.numel()}); }

constexpr const char* kPieces = "pieces/";

/// Whoever has it later, the whole is the same.
checkpoint::Shard piece_shard(const std::string& prefix, const parallel::HookState::Piece& piece) {
  return {.name = prefix + kPieces + piece.name,
          .global_sizes = {piece.numel},
          .offsets = {piece.begin},
          .tensor = piece.tensor};
}

constexpr const char* kOwn = "own/";

/// How many rows the tensors have that lie there under the prefix, by the rest of their names. Collective.
std::map<std::string, std::int64_t> stored_under(const std::string& prefix, comm::Context& context,
                                                 const std::filesystem::path& checkpoint) {
  std::vector<std::string> found;
  on_main(context, [&] {
    const checkpoint::ShardReader reader(checkpoint);
    for (const auto& [name, stored] : reader.tensors()) {
      if (!name.starts_with(prefix)) continue;
      found.push_back(text(stored.sizes.empty() ? 1 : stored.sizes[0], " ", name.substr(prefix.size())));
    }
  });
  std::map<std::string, std::int64_t> rows;
  for (const std::string& line : split(context.world().all_gather_text(join(found, "\n")).front(), '\n')) {
    const std::size_t end = line.find(' ');
    if (end != std::string::npos) rows[line.substr(end + 1)] = std::stoll(line.substr(0, end));
  }
  return rows;
}

template <class RefuseIf>
void check_one_bit(const ParallelPlan& plan, const RefuseIf& refuse_if) {
  const RunConfig& config = plan.config();
  if (!parallel::compresses_momentum(config.parallel.compression)) return;
  const std::string& optimizer = config.optimizer.name;
  refuse_if(optimizer != "adam" && optimizer != "adamw" && optimizer != "lamb",
            set(&RunConfig::optimizer, &optim::OptimizerOptions::name, "adamw"),
            "it is the momentum of adam, adamw or lamb that travels; found optimizer.name = \"", optimizer,
            "\"");
  refuse_if(config.parallel.compression_warmup_steps == 0,
            set(&RunConfig::parallel, &Parallel::compression_warmup_steps, 1000),
            "the mean square of gradients is learnt in parallel.compression_warmup_steps, and kept from then "
            "on: 15 to 25 % of all steps; found 0");
  refuse_if(
      config.train.clip_norm > 0, set(&RunConfig::train, &TrainOptions::clip_norm, 0),
      "train.clip_norm = ", config.train.clip_norm,
      " clips what arrives, and that is the change of a rounded momentum: its norm is not the gradients'");
  refuse_if(config.offload.optimizer != "none",
            set(&RunConfig::offload, &optim::OffloadOptions::optimizer, "none"), "offload.optimizer = \"",
            config.offload.optimizer, "\" has the momentum elsewhere than in memory");
}

void check_local_clipping(const RunConfig& config) {
  const Parallel& parallel = config.parallel;
  if (parallel.compression_clip_norm == 0) return;
  const auto refuse_if = [&](bool found, const Cure& cure, const auto&... reason) {
    if (found)
      throw Refusal(
          text("parallel.compression_clip_norm = ", parallel.compression_clip_norm, ": ", reason...),
          {cure, set(&RunConfig::parallel, &Parallel::compression_clip_norm, 0)});
  };
  refuse_if(!parallel::has_own_momentum(parallel.compression),
            set(&RunConfig::parallel, &Parallel::compression, "dgc"),
            "it is \"dgc\" that clips what each rank hands in; found parallel.compression = \"",
            parallel.compression, "\", with which train.clip_norm does what is wanted");
  refuse_if(parallel.pipeline > 1, set(&RunConfig::parallel, &Parallel::pipeline, 1),
            "parallel.pipeline = ", parallel.pipeline,
            ": a rank has the gradients of its own stages, and the norm is that of all");
  refuse_if(parallel.zero > 0, set(&RunConfig::parallel, &Parallel::zero, 0),
            "parallel.zero = ", parallel.zero,
            ": gradients that are shared out leave as they come, and the norm is that of all");
  refuse_if(parallel.chunks > 1, set(&RunConfig::parallel, &Parallel::chunks, 0),
            "parallel.chunks = ", parallel.chunks,
            ": stages are reduced one by one, and the norm is that of all gradients");
}

}  // namespace

void check_compression(const ParallelPlan& plan) {
  const RunConfig& config = plan.config();
  check_local_clipping(config);
  if (!plan.rounding().is_lossy) return;
  const Cure none = set(&RunConfig::parallel, &Parallel::compression, "none");
  const auto refuse_if = [&](bool found, const Cure& cure, const auto&... reason) {
    if (found)
      throw Refusal(text("parallel.compression = \"", config.parallel.compression, "\": ", reason...),
                    {cure, none});
  };
  refuse_if(config.parallel.tensor > 1, set(&RunConfig::parallel, &Parallel::tensor, 1),
            "parallel.tensor = ", config.parallel.tensor,
            " cuts gradients into pieces, and it is whole ones that are compressed");
  refuse_if(config.parallel.context > 1, set(&RunConfig::parallel, &Parallel::context, 1),
            "parallel.context = ", config.parallel.context,
            " adds gradients up over pieces of sequences, too, and those are not compressed");
  refuse_if(plan.asynchronous(), synchronous_schedule(), "parallel.schedule = \"", config.parallel.schedule,
            "\" updates each stage on its own time");
  check_one_bit(plan, refuse_if);
  refuse_if(config.parallel.compression == "threshold" && config.parallel.compression_threshold == 0,
            set(&RunConfig::parallel, &Parallel::compression_threshold, 1e-4),
            "it sends what is at least parallel.compression_threshold, which must be above 0: as large as a "
            "rank's share of your gradients is; found 0");
  refuse_if(corrects_momentum(config) && *config.optimizer.nesterov,
            set(&RunConfig::optimizer, &optim::OptimizerOptions::nesterov, false),
            "with optimizer.name = \"sgd\" its velocities are those of momentum as it is; found "
            "optimizer.nesterov = true");
}

void check_compression_of_shards(const ParallelPlan& plan) {
  const Parallel& parallel = plan.config().parallel;
  refuse_unless(parallel.zero > 0 || parallel.weight_compression == "none",
                {set(&RunConfig::parallel, &Parallel::weight_compression, "none"),
                 set(&RunConfig::parallel, &Parallel::zero, 3)},
                "parallel.weight_compression = \"", parallel.weight_compression,
                "\" with parallel.zero = 0: each rank has all weights, and nothing is gathered; set "
                "parallel.zero, or leave it out");
  if (parallel.zero == 0 || parallel.compression == "none") return;
  const std::string what = text("parallel.zero = ", parallel.zero, " with parallel.compression = \"",
                                parallel.compression, "\": ");
  const Cure none = set(&RunConfig::parallel, &Parallel::compression, "none"),
             no_shards = set(&RunConfig::parallel, &Parallel::zero, 0);
  const std::vector<std::string> known = parallel::shard_hook_names();
  refuse_unless(std::ranges::find(known, parallel.compression) != known.end(),
                {set(&RunConfig::parallel, &Parallel::compression, "sign"), no_shards}, what,
                "it is the whole momentum that travels, and ranks share that out; these can be had: ",
                join(known, ", "));
  refuse_unless(!corrects_momentum(plan.config()) || plan.num_microbatches() == 1 || parallel.zero == 1 ||
                    parallel.keep_gradients,
                {set(&RunConfig::parallel, &Parallel::keep_gradients, true), none}, what, "each of ",
                plan.num_microbatches(),
                " micro-batches is reduced by itself, and its velocity goes on with each reduction, not with "
                "each step; set parallel.keep_gradients, or parallel.zero = 1");
  refuse_unless(parallel.shard_ranks == 0, {set(&RunConfig::parallel, &Parallel::shard_ranks, 0), none}, what,
                "parallel.shard_ranks = ", parallel.shard_ranks,
                " shares gradients out within groups of replicas, as they are; leave one of the two out");
}

parallel::CompressionOptions compression_options(const RunConfig& config) {
  parallel::CompressionOptions options;
  options.name = config.parallel.compression;
  options.fraction = config.parallel.compression_fraction;
  options.threshold = config.parallel.compression_threshold;
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

const std::string kCompressionState = text(checkpoint::kOptimizerPrefix, "compression/");

checkpoint::Shards compression_shards(const Trainer& trainer) {
  const parallel::HookState state = trainer.compression_state();
  checkpoint::Shards shards;
  for (const auto& [name, tensor] : state.common)
    shards.push_back(checkpoint::whole_shard(prefix_of(trainer) + name, tensor));
  const Rows rows = rows_of(state, trainer);
  for (const auto& [name, tensor] : state.own)
    shards.push_back(row_shard(prefix_of(trainer) + kOwn + name, flat_row(tensor), rows.index, rows.number));
  for (const auto& piece : state.pieces) {
    if (piece.tensor.numel() > 0) shards.push_back(piece_shard(prefix_of(trainer), piece));
  }
  return shards;
}

KeptByCompression::KeptByCompression(const Trainer& trainer, comm::Context& context,
                                     const std::filesystem::path& checkpoint) {
  const std::string prefix = prefix_of(trainer);
  std::map<std::string, std::int64_t> found = stored_under(prefix, context, checkpoint);
  if (found.empty()) return;
  if (trainer.plan().weight_copies() == 1) {
    std::int64_t num_rows = 1;
    for (const auto& [name, rows] : found) num_rows = std::max(num_rows, name.starts_with(kOwn) ? rows : 1);
    if (context.is_main())
      context.log().warning("parallel.compression = \"", trainer.plan().config().parallel.compression,
                            "\" compresses nothing on one rank: what ", num_rows,
                            " ranks have left out of gradients so far is dropped; to keep it, resume with 2 "
                            "ranks or more");
    return;
  }
  const parallel::HookState state = trainer.compression_state();
  const Rows rows = rows_of(state, trainer);
  for (const auto& piece : state.pieces) {
    const bool is_there = found.erase(kPieces + piece.name) > 0;
    if (is_there && piece.tensor.numel() > 0) shards_.push_back(piece_shard(prefix, piece));
  }
  for (const auto& [name, tensor] : state.common)
    shards_.push_back(checkpoint::whole_shard(prefix + name, tensor));
  for (const auto& [name, tensor] : state.own) {
    const auto stored = found.find(kOwn + name);
    rows_.add(prefix + kOwn + name, flat_row(tensor), rows.index, rows.number,
              stored == found.end() ? 0 : stored->second);
    const std::string in_pieces = kPieces + ("sums_" + name);
    if (rows.index > 0 || !found.contains(in_pieces)) continue;
    left_over_.push_back(
        {.of = flat_row(tensor)[0], .stored = at::empty({tensor.numel()}, tensor.options())});
    shards_.push_back(checkpoint::whole_shard(prefix + in_pieces, left_over_.back().stored));
  }
  shards_.insert(shards_.end(), rows_.shards().begin(), rows_.shards().end());
}

void KeptByCompression::take_up() const {
  const at::NoGradGuard no_grad;
  rows_.take_sums();
  for (const LeftOver& each : left_over_) at::Tensor(each.of).add_(each.stored);
}

}  // namespace trireme::train
