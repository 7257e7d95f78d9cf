#pragma once
// The weights of a stage, of which each rank updates a part: where they lie, and how each rank comes to the
// whole. On one host they lie there once, in memory that its ranks have in common, and gathering is waiting
// until all have updated; else it is an all-gather of the ranks' parts, bucket by bucket, into memory that is
// kept, or released when the whole is not needed any more. The parameters stay the same tensors throughout;
// what autograd has saved of them is there again when they are. Everything here but release(), lend() and
// piece() is collective. One thread.

#include <memory>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/parallel/zero/internal/shard_layout.h"

namespace trireme::parallel {

/// What a rank has while nothing is gathered, where ranks have no memory in common.
enum class BetweenUses {
  kKept,      ///< the whole, others' parts as they were gathered last
  kReleased,  ///< its own part alone
};

class WeightShards {
 public:
  /// Moves the values of the group's first rank into the shards: `parameters` are views of them afterwards,
  /// in row-major order, and gathered. Throws CommError.
  WeightShards(comm::Group group, const std::vector<Parameter>& parameters,
               const std::vector<ShardBucket>& buckets, BetweenUses between_uses);

  /// What this rank updates of a parameter of those sizes, in place, whether or not the whole is gathered:
  /// with the same sizes where it has all of it, else with as many dims, all but the last of size 1. What
  /// goes by the number of dims decides alike.
  at::Tensor piece(const ShardPiece& piece, at::IntArrayRef of_whole) const;

  /// Parts have other values from here on, or may have on some rank: the next gather() brings them.
  void changed() { current_ = false; }
  /// Starts to gather; nothing where the whole is there, or on its way.
  void gather();
  /// Waits for what gather() has started.
  void wait();
  /// Without the whole until the next gather(), where memory is gained by that.
  void release();

  /// While the result lives, the parameters have memory, with any values where nothing is gathered. Not
  /// collective.
  std::shared_ptr<void> lend();

 private:
  struct Shard {
    at::Tensor whole;  ///< without memory while released
    at::Tensor part;   ///< inside `whole` unless that is released between uses
  };
  struct Leaf {
    at::Tensor parameter;
    at::Tensor view;    ///< of the whole
    at::Tensor hollow;  ///< without elements: what the parameter is while released
  };

  void take_memory(const ShardBucket& bucket, const at::TensorOptions& options);
  void take_values();
  void show();
  void hide();
  void gather_parts();

  comm::Group group_;
  const BetweenUses between_uses_;
  bool common_ = false;
  bool current_ = true;   ///< the whole that is gathered, or on its way, is that of the parts
  bool gathered_ = true;  ///< or on its way
  std::vector<Shard> shards_;
  std::vector<Leaf> leaves_;
  std::vector<comm::Pending> pending_;
  at::Tensor token_;  ///< what ranks exchange to know that all have updated
};

}  // namespace trireme::parallel
