#pragma once
// The weights of a stage, of which each rank updates a part: their memory, and the gather of the whole. On
// one host they are in memory once, shared by its ranks, and gathering is waiting until all have updated.
// Else it is an all-gather of the ranks' parts, bucket by bucket. Its result is kept, or released after the
// last use of the whole. If computation uses rounded weights, a part is private memory. The whole is then
// made of the parts' roundings at every gather. If gathers are encoded, the whole is made of the parts'
// messages, on their own rank, too. Parts that are not kept may be offloaded (optim/offload.h): they are
// fetched to be gathered, and ranks have no shared memory then. The parameters stay the same tensors
// throughout; tensors that autograd has saved of them are valid again after a gather. Everything here but
// release(), keep(), lend() and piece() is collective. One thread.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/offload.h"
#include "trireme/parallel/zero/internal/shard_layout.h"
#include "trireme/parallel/zero/internal/sharding_hook.h"

namespace trireme::parallel {

struct WeightShardOptions {
  std::shared_ptr<optim::Offload> offload = nullptr;  ///< where parts are that are not kept; null: here
  std::shared_ptr<ShardingHook> hook = nullptr;       ///< null: nothing is encoded, and bytes are not counted
};

/// A tensor of its own, no view of another, over part of the memory of `flat`, in row-major order.
at::Tensor tensor_in(const at::Tensor& flat, std::int64_t begin, at::IntArrayRef sizes);

class WeightShards {
 public:
  /// Moves the values of the group's first rank into the shards: `parameters` are views of them afterwards,
  /// in row-major order, and gathered. Throws CommError.
  WeightShards(comm::Group group, const std::vector<Parameter>& parameters,
               const std::vector<ShardBucket>& buckets, const WeightShardOptions& options = {});

  /// This rank's part of a parameter of those sizes, which it updates in place, with or without a gathered
  /// whole: with the same sizes where it has all of it, else with as many dims, all but the last of size 1.
  /// So rules by the number of dims decide alike.
  at::Tensor piece(const ShardPiece& piece, at::IntArrayRef of_whole) const;

  /// Throws InvalidArgument, by name: a parameter that was moved or converted, has begun or ceased to need a
  /// gradient, or was written where writes are not kept. Not collective.
  void check() const;

  /// Parts have other values from here on, or may have on some rank: the next gather() brings them.
  void changed() { current_ = false; }
  /// Starts to gather; nothing where the whole is there, or on its way.
  void gather();
  /// Waits for the gather of gather().
  void wait();
  /// Seconds so far.
  double waited_s() const { return waited_s_; }
  /// Without the whole until the next gather(), where memory is gained by that.
  void release();
  /// While the result lives, release() leaves the values of the last gather() in memory. Call it after
  /// wait(). Null where release() gains no memory. Not collective.
  std::shared_ptr<void> keep();

  /// While the result lives, the parameters have memory, with any values where nothing is gathered. Not
  /// collective.
  std::shared_ptr<void> lend();

 private:
  struct Shard {
    at::Tensor whole;  ///< without memory while released
    /// the part that this rank updates; inside `whole` unless that is released, rounded, encoded or offloaded
    at::Tensor part;
    bool rounded = false;
    bool kept = true;                                ///< between uses
    std::vector<std::vector<ShardPiece>> runs = {};  ///< by rank, where it is gathered encoded; else empty
    at::Tensor arriving = {};                        ///< messages of all ranks, on their way

    bool encoded() const { return !runs.empty(); }
    /// The weights for computation are made of it.
    bool is_exact() const { return rounded || encoded(); }
  };
  struct Leaf {
    at::Tensor parameter;
    at::Tensor view;      ///< of the whole
    at::Tensor released;  ///< its placeholder meanwhile: internal/released_parameter.h
    bool learns = false;
    std::int64_t version = 0;  ///< of the parameter, to detect writes
  };

  void take_memory(const ShardBucket& bucket, at::TensorOptions options);
  std::span<const Leaf> leaves_of(std::size_t shard) const;
  void take_values();
  void take_exact(std::size_t shard);
  void move_elsewhere();
  at::Tensor values_of(const Shard& shard) const;
  at::Tensor place_in_whole(const Shard& shard) const;
  bool is_inside(const Shard& shard) const;
  at::Tensor to_gather(const Shard& shard) const;
  void show();
  void hide();
  void gather_parts();
  void gather_encoded(Shard& shard);
  void take_messages(Shard& shard) const;
  std::int64_t bytes_of_message(const Shard& shard, int rank) const;
  void count(std::int64_t bytes) const;

  comm::Group group_;
  const std::shared_ptr<optim::Offload> offload_;  ///< null: all is in memory
  const std::shared_ptr<ShardingHook> hook_;
  std::vector<std::string> names_;    ///< of the parameters, by number
  std::vector<std::size_t> numbers_;  ///< of the leaves' parameters
  bool releases_ = false;             ///< weights that are not kept, where that gains memory
  bool common_ = false;
  bool current_ = true;       ///< the whole that is gathered, or on its way, is that of the parts
  bool gathered_ = true;      ///< or on its way
  bool has_memory_ = true;    ///< the whole, gathered or kept
  std::weak_ptr<void> kept_;  ///< by other code
  const std::shared_ptr<const void> alive_ = std::make_shared<char>();
  std::vector<Shard> shards_;
  std::vector<Leaf> leaves_;
  std::vector<std::size_t> first_leaf_;  ///< of each shard
  std::vector<comm::Pending> pending_;
  double waited_s_ = 0;
  at::Tensor token_;  ///< exchanged between ranks as the sign that all have updated
};

}  // namespace trireme::parallel
