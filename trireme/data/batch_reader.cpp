#include "trireme/data/batch_reader.h"

namespace trireme::data {
namespace {

Fields repeated(const Fields& one, std::size_t count) {
  return one.map([&](const at::Tensor& row) {
    std::vector<std::int64_t> shape = row.sizes().vec();
    shape[0] = static_cast<std::int64_t>(count);
    return row.expand(shape);
  });
}

}  // namespace

Example BatchReader::like(const Dataset& dataset) const {
  const std::lock_guard lock(mutex_);
  if (!like_) like_ = dataset.trial_batch(1);
  return *like_;
}

Example BatchReader::read(const Dataset& dataset, std::span<const std::int64_t> indices) const {
  if ((needed_.inputs && needed_.targets) || dataset.sizes_vary()) return dataset.get_batch(indices);
  const Example one = like(dataset);
  if (needed_.inputs) return {dataset.get_batch(indices).input, repeated(one.target, indices.size())};
  return {repeated(one.input, indices.size()),
          needed_.targets ? dataset.get_targets(indices) : repeated(one.target, indices.size())};
}

}  // namespace trireme::data
