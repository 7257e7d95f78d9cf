#pragma once
// Ways to shard a state, for tests of resharding. The numbers of a tensor encode their position, so that a
// wrong position is detected.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include "trireme/base/error.h"
#include "trireme/checkpoint/shard.h"

namespace trireme::checkpoint {

enum class Cut { kReplicas, kRows, kColumns, kFlat, kByName };

inline TensorMap whole_tensors() {
  return {{"bias", at::arange(7, at::kFloat)},
          {"count", at::full({}, 3, at::kLong)},
          {"mask", at::arange(12, at::kLong).remainder(2).to(at::kBool).view({3, 4})},
          {"nothing", at::full({0, 4}, 0, at::kFloat)},
          {"optimizer/momentum", at::arange(9 * 10, at::kDouble).view({9, 10}) * 3},
          {"weight", at::arange(9 * 10 * 2, at::kFloat).view({9, 10, 2})}};
}

/// The rank's part of `size`.
inline Box share_of(at::IntArrayRef sizes, std::size_t dim, int rank, int num_ranks) {
  Box box = whole_box(sizes);
  const std::int64_t begin = sizes[dim] * rank / num_ranks, end = sizes[dim] * (rank + 1) / num_ranks;
  box.offsets[dim] = begin;
  box.sizes[dim] = end - begin;
  return box;
}

inline std::vector<Box> boxes_of(at::IntArrayRef sizes, Cut cut, int rank, int num_ranks) {
  const Box whole = whole_box(sizes);
  if (cut == Cut::kFlat && whole.numel() > 0) {
    const std::int64_t each = (whole.numel() + num_ranks - 1) / num_ranks;  // padded at the end
    return boxes_of_flat_range(sizes, rank * each, (rank + 1) * each);
  }
  const std::size_t dim = cut == Cut::kColumns ? 1 : 0;
  if ((cut == Cut::kRows || cut == Cut::kColumns) && sizes.size() > dim)
    return {share_of(sizes, dim, rank, num_ranks)};
  return {whole};
}

/// This rank's shards, with or without their numbers.
inline Shards shards_of(Cut cut, int rank, int num_ranks, bool with_numbers) {
  Shards shards;
  int number = 0;
  for (const auto& [name, tensor] : whole_tensors()) {
    if (cut == Cut::kByName && number++ % num_ranks != rank) continue;
    for (const Box& box : boxes_of(tensor.sizes(), cut, rank, num_ranks)) {
      if (box.numel() == 0 && tensor.numel() > 0) continue;
      const at::Tensor mine = view_of(tensor, whole_box(tensor.sizes()), box).clone();
      shards.push_back({.name = name,
                        .global_sizes = tensor.sizes().vec(),
                        .offsets = box.offsets,
                        .tensor = with_numbers ? mine : at::full_like(mine, 1)});
    }
  }
  return shards;
}

/// Throws unless each shard has the numbers of its position.
inline void check_numbers(const Shards& shards) {
  const TensorMap whole = whole_tensors();
  for (const Shard& shard : shards) {
    const at::Tensor& tensor = whole.at(shard.name);
    require(shard.tensor.equal(view_of(tensor, whole_box(tensor.sizes()), shard.box())), "wrong numbers in ",
            shard.name, describe(shard.box()));
  }
}

}  // namespace trireme::checkpoint
