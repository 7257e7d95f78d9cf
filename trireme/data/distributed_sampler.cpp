#include "trireme/data/distributed_sampler.h"

#include <ATen/ops/tensor.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

Sampler sampler_of(std::int64_t num_samples, const DistributedSamplerOptions& options) {
  return {num_samples, {.order = options.order, .seed = options.seed}};
}

}  // namespace

struct DistributedSampler::State {
  State(std::int64_t samples, const DistributedSamplerOptions& the_options)
      : options(the_options),
        num_samples(samples),
        sampler(sampler_of(samples, options)),
        order(sampler.order_of(0)) {}

  std::int64_t global_batch(std::int64_t batch_size) const {
    require(batch_size > 0, "a loader with batch_size = ", batch_size, "; expected at least 1");
    return batch_size * options.world_size;
  }

  DistributedSamplerOptions options;
  std::int64_t num_samples;
  data::Sampler sampler;
  EpochOrder order;
  std::uint64_t epoch = 0;  ///< of `order`
  std::int64_t batch = 0;   ///< the next one
  std::uint64_t next_epoch = 0;
  std::int64_t first_batch = 0;  ///< of the next epoch
};

DistributedSampler::DistributedSampler(std::int64_t num_samples, const DistributedSamplerOptions& options) {
  require(options.world_size > 0 && options.rank >= 0 && options.rank < options.world_size,
          "DistributedSampler: found rank ", options.rank, " of ", options.world_size,
          "; expected Context::rank() and Context::world_size()");
  state_ = std::make_shared<State>(num_samples, options);
}

void DistributedSampler::seek(std::uint64_t epoch, std::int64_t batch) {
  require(batch >= 0, "DistributedSampler: found batch ", batch, "; expected one from 0 on");
  state_->next_epoch = epoch;
  state_->first_batch = batch;
}

std::int64_t DistributedSampler::num_batches(std::int64_t batch_size) const {
  const std::int64_t size = state_->global_batch(batch_size), full = state_->num_samples / size;
  const bool has_rest = state_->num_samples % size != 0 && state_->options.last_batch == LastBatch::kSmaller;
  return full + (has_rest ? 1 : 0);
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size.has_value() && static_cast<std::int64_t>(*new_size) != state_->num_samples) {
    state_->num_samples = static_cast<std::int64_t>(*new_size);
    state_->sampler = sampler_of(state_->num_samples, state_->options);
  }
  state_->epoch = state_->next_epoch++;
  state_->batch = std::exchange(state_->first_batch, 0);
  state_->order = state_->sampler.order_of(state_->epoch);
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  State& state = *state_;
  const auto mine = static_cast<std::int64_t>(batch_size);
  if (state.batch >= num_batches(mine)) return std::nullopt;
  const std::int64_t size = state.global_batch(mine), first = state.batch * size;
  const Slice part =
      slice_of(std::min(size, state.num_samples - first), state.options.rank, state.options.world_size);
  ++state.batch;
  if (part.size() == 0) return std::nullopt;
  std::vector<std::size_t> samples;
  samples.reserve(static_cast<std::size_t>(part.size()));
  for (std::int64_t place = first + part.begin; place < first + part.end; ++place)
    samples.push_back(static_cast<std::size_t>(state.order[place]));
  return samples;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::tensor(static_cast<std::int64_t>(state_->epoch)), /*is_buffer=*/true);
  archive.write("batch", at::tensor(state_->batch), /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch = at::tensor(std::int64_t{0}), batch = at::tensor(std::int64_t{0});
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("batch", batch, /*is_buffer=*/true);
  seek(static_cast<std::uint64_t>(epoch.item<std::int64_t>()), batch.item<std::int64_t>());
}

}  // namespace trireme::data
