#include "trireme/train/internal/compression.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "trireme/base/error.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/internal/cures.h"
#include "trireme/train/internal/on_main.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

using Parallel = ParallelOptions;

/// Of the state of one compression: what another one has kept means nothing to it.
std::string prefix_of(const Trainer& trainer) {
  return text(checkpoint::kOptimizerPrefix, "compression/", trainer.plan().config().parallel.compression,
              "/");
}

checkpoint::Shard row_shard(const std::string& name, const at::Tensor& tensor, std::int64_t row,
                            std::int64_t num_rows) {
  return {.name = name,
          .global_sizes = {num_rows, tensor.numel()},
          .offsets = {row, 0},
          .tensor = tensor.view({1, tensor.numel()})};
}

/// How many replicas have written what the checkpoint holds; 0: it holds nothing.
std::int64_t stored_rows(const std::string& prefix, comm::Context& context,
                         const std::filesystem::path& checkpoint) {
  std::int64_t rows = 0;
  on_main(context, [&] {
    const checkpoint::ShardReader reader(checkpoint);
    for (const auto& [name, stored] : reader.tensors()) {
      if (!name.starts_with(prefix)) continue;
      const bool is_own = stored.sizes.size() == 2 && name.starts_with(prefix + "own/");
      rows = std::max<std::int64_t>(rows, is_own ? stored.sizes[0] : 1);
    }
  });
  return std::stoll(context.world().all_gather_text(text(rows)).front());
}

}  // namespace

void check_compression(const ParallelPlan& plan) {
  const RunConfig& config = plan.config();
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
  refuse_if(plan.rounding().keeps_residuals && plan.precision().scales_loss,
            set(&RunConfig::train, &TrainOptions::precision, "bf16"), "train.precision = \"",
            config.train.precision,
            "\" scales gradients by a factor that changes, and what is left out of one goes with the next");
  if (!parallel::has_own_momentum(config.parallel.compression)) return;
  const Cure plain_sgd = [](RunConfig& changed) {
    changed.optimizer.name = "sgd";
    changed.optimizer.nesterov = false;
  };
  refuse_if(config.optimizer.name != "sgd" || config.optimizer.nesterov, plain_sgd,
            "its velocities are those of SGD with momentum, which it takes from optimizer.momentum; found "
            "optimizer.name = \"",
            config.optimizer.name, "\"", config.optimizer.nesterov ? " with optimizer.nesterov" : "");
}

parallel::CompressionOptions compression_options(const RunConfig& config) {
  parallel::CompressionOptions options;
  options.name = config.parallel.compression;
  options.fraction = config.parallel.compression_fraction;
  options.warmup_steps = config.parallel.compression_warmup_steps;
  options.rank = config.parallel.compression_rank;
  options.momentum = config.optimizer.momentum;
  options.seed = static_cast<std::uint64_t>(config.run.seed);
  return options;
}

optim::OptimizerOptions optimizer_options(const ParallelPlan& plan) {
  optim::OptimizerOptions options = plan.config().optimizer;
  if (plan.weight_copies() > 1 && parallel::has_own_momentum(plan.config().parallel.compression))
    options.momentum = 0;
  return options;
}

checkpoint::Shards compression_shards(const Trainer& trainer) {
  const parallel::HookState state = trainer.compression_state();
  checkpoint::Shards shards;
  for (const auto& [name, tensor] : state.common)
    shards.push_back(checkpoint::whole_shard(prefix_of(trainer) + name, tensor));
  for (const auto& [name, tensor] : state.own)
    shards.push_back(row_shard(prefix_of(trainer) + "own/" + name, tensor, trainer.replica(),
                               trainer.plan().weight_copies()));
  return shards;
}

KeptByCompression::KeptByCompression(const Trainer& trainer, comm::Context& context,
                                     const std::filesystem::path& checkpoint) {
  const std::string prefix = prefix_of(trainer);
  const std::int64_t num_rows = stored_rows(prefix, context, checkpoint);
  if (num_rows == 0) return;
  const parallel::HookState state = trainer.compression_state();
  for (const auto& [name, tensor] : state.common)
    shards_.push_back(checkpoint::whole_shard(prefix + name, tensor));
  for (const auto& [name, tensor] : state.own) {
    for (std::int64_t row = trainer.replica(); row < num_rows; row += trainer.plan().weight_copies()) {
      rows_.push_back({.of = tensor, .stored = at::empty({tensor.numel()}, tensor.options())});
      shards_.push_back(row_shard(prefix + "own/" + name, rows_.back().stored, row, num_rows));
    }
  }
}

void KeptByCompression::take_up() const {
  const at::NoGradGuard no_grad;
  for (const Row& row : rows_) at::Tensor(row.of).zero_();
  for (const Row& row : rows_) at::Tensor(row.of).view(row.stored.sizes()).add_(row.stored);
}

}  // namespace trireme::train
