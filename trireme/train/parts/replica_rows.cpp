#include "trireme/train/parts/internal/replica_rows.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

namespace trireme::train {

checkpoint::Shard row_shard(const std::string& name, const at::Tensor& tensor, std::int64_t row,
                            std::int64_t num_rows) {
  checkpoint::Shard shard{
      .name = name, .global_sizes = tensor.sizes().vec(), .offsets = {}, .tensor = tensor};
  shard.offsets.assign(shard.global_sizes.size(), 0);
  shard.global_sizes[0] = num_rows;
  shard.offsets[0] = row;
  return shard;
}

std::int64_t stored_rows(const std::string& prefix, const StoredSizes& stored) {
  std::int64_t rows = 0;
  for (const auto& [name, sizes] : stored) {
    if (name.starts_with(prefix) && !sizes.empty()) rows = std::max(rows, sizes[0]);
  }
  return rows;
}

void StoredRows::add(const std::string& name, const at::Tensor& row, std::int64_t index,
                     std::int64_t num_rows, std::int64_t num_stored) {
  rows_.push_back({.of = row});
  for (; index < num_stored; index += num_rows) {
    rows_.back().stored.push_back(at::empty_like(row));
    shards_.push_back(row_shard(name, rows_.back().stored.back(), index, num_stored));
  }
}

void StoredRows::take_sums() const {
  const at::NoGradGuard no_grad;
  for (const Row& row : rows_) {
    at::Tensor sum = row.of;
    sum.zero_();
    for (const at::Tensor& stored : row.stored) sum.add_(stored);
  }
}

void StoredRows::take_means() const {
  const at::NoGradGuard no_grad;
  for (const Row& row : rows_) {
    if (row.stored.empty()) continue;
    at::Tensor mean = row.of;
    mean.copy_(row.stored.front());
    if (!mean.is_floating_point() || row.stored.size() == 1) continue;
    for (std::size_t i = 1; i < row.stored.size(); ++i) mean.add_(row.stored[i]);
    mean.div_(static_cast<double>(row.stored.size()));
  }
}

}  // namespace trireme::train
