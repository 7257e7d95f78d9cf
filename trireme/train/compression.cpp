#include "trireme/train/internal/compression.h"

#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/internal/cures.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

using Parallel = ParallelOptions;

/// Of the state of one compression: what another one has kept means nothing to it.
std::string prefix_of(const Trainer& trainer) {
  return text(checkpoint::kOptimizerPrefix, "compression/", trainer.plan().config().parallel.compression,
              "/");
}

/// Of any shape, as one row.
at::Tensor flat_row(const at::Tensor& tensor) { return tensor.view({1, tensor.numel()}); }

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
    shards.push_back(row_shard(prefix_of(trainer) + "own/" + name, flat_row(tensor), trainer.replica(),
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
  for (const auto& [name, tensor] : state.own)
    rows_.add(prefix + "own/" + name, flat_row(tensor), trainer.replica(), trainer.plan().weight_copies(),
              num_rows);
  shards_.insert(shards_.end(), rows_.shards().begin(), rows_.shards().end());
}

void KeptByCompression::take_up() const { rows_.take_sums(); }

}  // namespace trireme::train
