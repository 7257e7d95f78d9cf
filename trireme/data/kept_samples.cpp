#include "trireme/data/kept_samples.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::data {
namespace {

/// No ATen copy: it would start an OpenMP team in every loader thread.
void copy_rows(const at::Tensor& from, char*& to) {
  if (from.is_contiguous()) {
    if (from.nbytes() > 0) std::memcpy(to, from.const_data_ptr(), from.nbytes());
    to += from.nbytes();
    return;
  }
  for (std::int64_t i = 0; i < from.size(0); ++i) copy_rows(from.select(0, i), to);
}

/// The values in the same memory order, in storage that holds no other data.
at::Tensor alone(const at::Tensor& tensor) {
  if (tensor.storage().nbytes() == tensor.nbytes()) return tensor;
  std::vector<std::int64_t> outermost_first(static_cast<std::size_t>(tensor.dim()));
  std::iota(outermost_first.begin(), outermost_first.end(), std::int64_t{0});
  std::ranges::stable_sort(outermost_first, std::greater<>(),
                           [&](std::int64_t dim) { return tensor.stride(dim); });
  std::vector<std::int64_t> back(outermost_first.size());
  for (std::size_t place = 0; place < back.size(); ++place)
    back[static_cast<std::size_t>(outermost_first[place])] = static_cast<std::int64_t>(place);
  const at::Tensor ordered = tensor.permute(outermost_first);
  const at::Tensor copy = at::empty(ordered.sizes(), ordered.options());
  auto* to = static_cast<char*>(copy.data_ptr());
  copy_rows(ordered, to);
  return copy.permute(back);
}

std::int64_t bytes_of(const Example& sample) {
  std::int64_t bytes = 0;
  for (const Fields* fields : {&sample.input, &sample.target}) {
    for (const batch::Field& field : *fields) bytes += static_cast<std::int64_t>(field.tensor.nbytes());
  }
  return bytes;
}

class KeptSamples : public Dataset {
 public:
  KeptSamples(std::shared_ptr<const Dataset> samples, std::shared_ptr<SampleMemory> memory)
      : samples_(std::move(samples)), memory_(std::move(memory)) {}
  ~KeptSamples() override {
    for (const auto& [index, sample] : kept_) memory_->give_back(bytes_of(sample));
  }
  KeptSamples(const KeptSamples&) = delete;
  KeptSamples& operator=(const KeptSamples&) = delete;

  std::int64_t size() const override { return samples_->size(); }
  bool sizes_vary() const override { return samples_->sizes_vary(); }
  double cost(std::int64_t index) const override { return samples_->cost(index); }
  std::vector<std::int64_t> shard_ends() const override { return samples_->shard_ends(); }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    return samples_->in_epoch(epoch);
  }

  Fields get_targets(std::span<const std::int64_t> indices) const override {
    return samples_->get_targets(indices);
  }
  Example get(std::int64_t index) const override {
    {
      const std::lock_guard lock(mutex_);
      const auto found = kept_.find(index);
      count_cache(found != kept_.end());
      if (found != kept_.end()) return found->second;
    }
    Example sample = samples_->get(index);
    const std::int64_t bytes = bytes_of(sample);
    if (!memory_->take(bytes)) return sample;
    Example copy = {sample.input.map(alone), sample.target.map(alone)};
    const std::lock_guard lock(mutex_);
    // Another thread may have stored this sample in the meantime.
    if (!kept_.emplace(index, std::move(copy)).second) memory_->give_back(bytes);
    return sample;
  }

 private:
  const std::shared_ptr<const Dataset> samples_;
  const std::shared_ptr<SampleMemory> memory_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::int64_t, Example> kept_;  ///< under the mutex
};

}  // namespace

bool SampleMemory::take(std::int64_t bytes) {
  if (left_.fetch_sub(bytes) >= bytes) return true;
  left_ += bytes;
  return false;
}

std::shared_ptr<const Dataset> kept_samples(std::shared_ptr<const Dataset> samples,
                                            std::shared_ptr<SampleMemory> memory) {
  return std::make_shared<KeptSamples>(std::move(samples), std::move(memory));
}

}  // namespace trireme::data
