#include "trireme/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::data {
namespace {

constexpr std::uint64_t kOrderKey = Random::key_of("sample order");

}  // namespace

Slice slice_of(std::int64_t size, std::int64_t index, std::int64_t count) {
  require(size >= 0 && count >= 1 && index >= 0 && index < count, "there is no part ", index, " of ", count,
          " parts of ", size);
  const std::int64_t each = size / count;
  const std::int64_t longer = size % count;
  const std::int64_t begin = index * each + std::min(index, longer);
  return {begin, begin + each + (index < longer ? 1 : 0)};
}

Sampler::Sampler(std::int64_t num_samples, std::int64_t global_batch, std::uint64_t seed, Order order)
    : num_samples_(num_samples), global_batch_(global_batch), seed_(seed), order_(order) {
  require(num_samples >= 1, "there are no samples to draw from");
  require(num_samples <= std::int64_t{1} << 32, "at most 2^32 samples can be shuffled, there are ",
          num_samples);
  require(global_batch >= 1, "a global batch holds at least one sample, not ", global_batch);
}

std::int64_t Sampler::batches_per_epoch() const {
  return num_samples_ / global_batch_ + (num_samples_ % global_batch_ == 0 ? 0 : 1);
}

std::int64_t Sampler::batch_size(std::int64_t batch) const {
  require(batch >= 0 && batch < batches_per_epoch(), "there is no batch ", batch, " in an epoch of ",
          batches_per_epoch());
  return std::min(global_batch_, num_samples_ - batch * global_batch_);
}

std::vector<std::int64_t> Sampler::epoch_order(std::uint64_t epoch) const {
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_samples_));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (order_ == Order::kSequential) return order;
  // Fisher and Yates, from the end. std::shuffle differs between standard libraries.
  Random random(seed_, kOrderKey, epoch);
  for (std::size_t last = order.size() - 1; last > 0; --last)
    std::swap(order[last], order[random.below(last + 1)]);
  return order;
}

}  // namespace trireme::data
