#pragma once
// How parameters lie in flat shards (ZeRO: Rajbhandari et al., arXiv 1910.02054). The parameters of one dtype
// are laid one after another into buckets; each bucket has as many elements as there are ranks times its
// part, and rank r has the r-th part. What a rank has of a parameter is a piece: a run of its elements in
// row-major order. Parameters and parts begin at whole cache lines, so that a kernel does with a piece what
// it would do with the whole. A pure function of sizes and dtypes: all ranks come to the same. Values.

#include <cstdint>
#include <vector>

#include "trireme/parallel/data/internal/bucket.h"

namespace trireme::parallel {

/// Where the parts of a bucket may end.
enum class ShardCut {
  kAnywhere,        ///< parts are alike, up to padding
  kBetweenTensors,  ///< each parameter is one rank's: for who needs whole tensors; parts are as even as those
                    ///< allow
};

struct ShardSlot {
  std::size_t parameter;  ///< its number
  std::int64_t begin;     ///< in the bucket
  std::int64_t numel;
};

struct ShardBucket {
  std::vector<ShardSlot> slots;  ///< in the order of their places
  std::int64_t part = 0;         ///< elements of each rank's part, padding included
};

/// What a rank has of a parameter.
struct ShardPiece {
  std::size_t parameter;
  std::size_t bucket;
  std::int64_t place;  ///< in the rank's part of the bucket
  std::int64_t begin;  ///< of the parameter's elements
  std::int64_t numel;
};

/// Buckets of about the sizes that assign_buckets() makes of the same order.
std::vector<ShardBucket> lay_out_shards(const std::vector<Parameter>& parameters,
                                        std::span<const std::size_t> order, int num_ranks, ShardCut cut,
                                        std::int64_t first_bucket_bytes, std::int64_t bucket_bytes);

/// The pieces of a rank, in the order of the buckets.
std::vector<ShardPiece> pieces_of_rank(const std::vector<ShardBucket>& buckets, int rank);

}  // namespace trireme::parallel
