#pragma once
// parallel.compression: what it fits, and what of it goes into checkpoints.

#include <filesystem>
#include <string>

#include "trireme/checkpoint/shard.h"
#include "trireme/comm/context.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/internal/replica_rows.h"
#include "trireme/train/parallel_plan.h"

namespace trireme::train {

class Trainer;

/// Throws a Refusal: what cannot be had with a compression.
void check_compression(const ParallelPlan& plan);
/// The same where replicas share gradients out.
void check_compression_of_shards(const ParallelPlan& plan);

parallel::CompressionOptions compression_options(const RunConfig& config);
/// The name of the compression, and whether "dgc" goes without momentum correction with this optimizer.
std::string compression_in_words(const RunConfig& config);
/// Without the momentum that a compression has instead, where there are replicas.
optim::OptimizerOptions optimizer_options(const ParallelPlan& plan);

/// What the names of compression_shards() begin with.
extern const std::string kCompressionState;

/// What the compression keeps from step to step. Of what each replica has for itself, the rows of one tensor.
/// Shared with the hooks, which change it in every backward.
checkpoint::Shards compression_shards(const Trainer& trainer);

/// The same, to be filled from a checkpoint that another number of replicas may have written.
class KeptByCompression {
 public:
  /// Collective. Of a checkpoint that holds nothing of this compression there is nothing to fill.
  KeptByCompression(const Trainer& trainer, comm::Context& context, const std::filesystem::path& checkpoint);
  const checkpoint::Shards& shards() const { return shards_; }
  /// They have been filled: replicas that are no more leave theirs to the others, so that the sum stays.
  void take_up() const;

 private:
  checkpoint::Shards shards_;
  StoredRows rows_;
  /// What was left out of sums, where ranks no longer keep that in pieces: it goes with the first one's own.
  struct LeftOver {
    at::Tensor of, stored;
  };
  std::vector<LeftOver> left_over_;
};

}  // namespace trireme::train
