#pragma once
// A sampler for libtorch's own loader, torch::data::make_data_loader, over the ranks of a data-parallel run
// (PyTorch: DistributedSampler). Batch k of an epoch is the next batch_size * world_size places of the
// epoch's order. Each rank takes one part of it, so the global batches are the same for any number of ranks.
// Each sample comes once per epoch: nothing is repeated to fill a batch. The order is that of data/sampler.h,
// a function of seed and epoch.
//
// Copies share one state: the loader keeps a copy, and set_epoch() on the caller's copy reaches it.
// torch::data::samplers::DistributedRandomSampler does not share it. It also has no seed, and repeats or
// leaves out samples. Each reset() of it, which a loader's begin() calls, starts at the beginning of the
// epoch. For one thread, that of the loader's consumer.

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/data/batch_layout.h"
#include "trireme/data/sampler.h"

namespace trireme::data {

/// Which samples are this rank's, in which order.
struct DistributedSamplerOptions {
  int rank = 0;
  int world_size = 1;
  Order order = Order::kShuffled;
  std::uint64_t seed = 0;  ///< the same on all ranks
  /// Of fewer samples than batch_size * world_size. kSmaller: each rank gets an equal part, up to one sample,
  /// and no batch where there is no sample for it: ranks may differ by one batch, which Join is for. Do not
  /// set drop_last of the loader, with which ranks differ, too; use kDropped.
  LastBatch last_batch = LastBatch::kSmaller;
};

class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Over samples 0 to num_samples - 1. Throws InvalidArgument: no samples, a rank outside of the world.
  DistributedSampler(std::int64_t num_samples, const DistributedSamplerOptions& options);

  /// The next begin() of the loader is that epoch, from its first batch on. Without it, each begin() is the
  /// epoch after the last one, from 0 on.
  void set_epoch(std::uint64_t epoch) { seek(epoch, 0); }
  /// The same from batch number `batch` on, to resume: after that many batches of the loop, which a loader
  /// with workers has read ahead of.
  void seek(std::uint64_t epoch, std::int64_t batch);
  /// Batches of an epoch with that batch size of the loader: the largest number over the ranks.
  std::int64_t num_batches(std::int64_t batch_size) const;

  /// Begins the next epoch. A new number of samples holds from now on.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  /// This rank's samples of the next batch, at most `batch_size`; none at the end of the epoch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  /// Epoch and batch of the next call of next(). load() is a seek() there.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme::data
