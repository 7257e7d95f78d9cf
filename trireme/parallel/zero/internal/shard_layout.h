#pragma once
// Layout of parameters in flat shards (ZeRO: Rajbhandari et al., arXiv 1910.02054). The parameters of one
// dtype are placed one after another into buckets. Each bucket has as many elements as there are ranks times
// its part, and rank r has the r-th part. A rank's part of a parameter is a piece: a range of its elements in
// row-major order. Parameters and parts begin at whole cache lines, so a kernel computes the same for a piece
// as for the whole. A pure function of sizes and dtypes: all ranks get the same layout. Values.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trireme/parallel/data/internal/bucket.h"
#include "trireme/parallel/zero/gradient_buckets.h"

namespace trireme::parallel {

/// Where the parts of a bucket may end.
enum class ShardCut {
  kAnywhere,        ///< parts are alike, up to padding
  kBetweenTensors,  ///< each parameter is one rank's: for users of whole tensors; parts are as even as those
                    ///< allow
};

/// How the ranks use a parameter. A bucket holds parameters of one kind.
struct ShardUse {
  std::optional<c10::ScalarType> working_type = {};  ///< their copies for computation are rounded to it
  bool is_kept = true;                               ///< between uses
  bool is_encoded = false;  ///< its gradients, or weights, travel in the bytes of a codec
  bool operator==(const ShardUse&) const = default;
};

struct ShardSlot {
  std::size_t parameter;  ///< its number
  std::int64_t begin;     ///< in the bucket
  std::int64_t numel;
};

struct ShardBucket {
  std::vector<ShardSlot> slots;                   ///< in the order of their places
  std::int64_t part = 0;                          ///< elements of each rank's part, padding included
  c10::ScalarType type = c10::ScalarType::Float;  ///< of the parameters, and of the sums of their gradients
  ShardUse use = {};
};

/// A rank's part of a parameter.
struct ShardPiece {
  std::size_t parameter;
  std::size_t bucket;
  std::int64_t place;  ///< in the rank's part of the bucket
  std::int64_t begin;  ///< of the parameter's elements
  std::int64_t numel;
};

struct ShardLayout {
  int num_ranks = 1;
  ShardCut cut = ShardCut::kAnywhere;
  std::int64_t first_bucket_bytes = 0, bucket_bytes = 0;
  /// Of a bucket with several parameters.
  std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max();
  std::function<ShardUse(const Parameter&)> use_of = [](const Parameter&) { return ShardUse(); };
};

/// As the options and the limits have it, cut anywhere.
ShardLayout shard_layout(const DataParallelOptions& options, int num_ranks, const BucketLimits& limits);

/// Buckets of about the sizes that assign_buckets() makes of the parameters of each kind; they come in the
/// order in which their last parameters are in `order`.
std::vector<ShardBucket> lay_out_shards(const std::vector<Parameter>& parameters,
                                        std::span<const std::size_t> order, const ShardLayout& layout);

/// The pieces of a rank, in the order of the buckets.
std::vector<ShardPiece> pieces_of_rank(const std::vector<ShardBucket>& buckets, int rank);

}  // namespace trireme::parallel
