#pragma once
// The gradients of a stage whose weights are sharded: taken from the parameters during backward, bucket by
// bucket, and reduced so that each rank gets the sum for its own part. A reduction is of one pass, or of the
// sum of several: in the parameters, or, where those are rounded, in the buckets, whose type is that of the
// sums. Buckets start in one order on all ranks, while backward continues. Collective but for part(). One
// thread.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/data/internal/gradient_buffer_allocator.h"
#include "trireme/parallel/zero/internal/bucket_pool.h"
#include "trireme/parallel/zero/internal/shard_codec.h"
#include "trireme/parallel/zero/internal/shard_layout.h"

namespace trireme::parallel {

struct GradientShardOptions {
  UnusedParameters unused = UnusedParameters::kError;
  ReduceScale scale = ReduceScale::kSum;
  std::shared_ptr<BucketPool> pool;  ///< of all stages of this rank
  std::optional<comm::Group> copies =
      {};  ///< ranks of other groups with the same part: sums go over them, too
  std::shared_ptr<ShardingHook> hook = nullptr;  ///< null: gradients are sent uncompressed, and not counted
};

class GradientShards {
 public:
  /// `parameters` are those of the buckets; those that need no gradient get none. `everybody` has the ranks
  /// of all groups.
  GradientShards(comm::Group everybody, comm::Group group, std::vector<Parameter> parameters,
                 std::vector<ShardBucket> buckets, const GradientShardOptions& options);
  /// Fails the group when reductions are under way.
  ~GradientShards();
  GradientShards(const GradientShards&) = delete;
  GradientShards& operator=(const GradientShards&) = delete;

  /// Of a step. Throws CommError where the one before has ended in the middle of a reduction.
  void begin();
  /// Scope of a computation of the stage's gradients.
  void begin_backward();
  void end_backward();
  /// From here on gradients are taken as they come, for a reduction; else parameters keep them, and add up.
  void begin_pass();
  /// Starts the rest of the pass: kept gradients of parameters count, or zeros.
  void end_pass();
  /// The same after the last pass, or where there was none; nothing is added any more. All ranks have done
  /// with the weights of the step when finish() returns on one.
  void complete();
  /// Waits. Throws InvalidArgument: a parameter without a gradient, by name and rank (kError); CommError.
  void finish();

  /// Fails the group, for this reason, when reductions of a step have begun that finish() has not ended.
  void give_up(const std::string& why);

  /// This rank's gradients of a bucket: the sum, or mean, of the step, until the next begin().
  const at::Tensor& part(std::size_t bucket) const { return sums_[bucket]; }
  /// Whether any rank has had a gradient for the parameter.
  bool used(std::size_t parameter) const { return used_[parameter]; }
  double waited_s() const { return waited_s_; }

 private:
  struct Filling {
    at::Tensor flat;  ///< undefined: it holds nothing yet
    std::size_t left = 0;
  };

  void on_gradient(std::size_t number);
  void take(std::size_t number);
  void note_place(std::size_t number);
  at::Tensor place_of(std::size_t number);
  at::Tensor slot_of(std::size_t number);
  void move_elsewhere(std::size_t bucket);
  void start_ready();
  void start(std::size_t bucket);
  void start_encoded(std::size_t bucket, at::Tensor flat);
  bool reduces_whole() const { return options_.hook && options_.hook->reduces_whole_gradients(); }
  /// Of which a later one begins when the first is waited for.
  bool goes_in_stages() const { return options_.hook && options_.hook->goes_in_stages(); }
  void start_whole(std::size_t bucket, at::Tensor flat);
  void finish_stages();
  optim::NamedTensors whole_gradients() const;
  at::Tensor whole_gradient(std::size_t bucket, const ShardSlot& slot) const;
  void count(std::int64_t bytes) const {
    if (options_.hook) options_.hook->count(bytes);
  }
  at::Tensor part_of(std::size_t bucket, const at::Tensor& whole) const;
  void add_part(std::size_t bucket, const at::Tensor& part, const at::Tensor& flat);
  bool is_rounded(std::size_t parameter) const {
    return buckets_[slots_[parameter].bucket].use.working_type.has_value();
  }
  void set_aside(std::size_t number);
  void put(std::size_t number, at::Tensor slot, const at::Tensor& gradient);
  std::int64_t numel_of(std::size_t bucket) const { return buckets_[bucket].part * group_.size(); }
  std::string unreached_of_all_ranks();
  /// Reductions of a step have begun that finish() has not ended.
  bool under_way() const;

  void reduce_over_copies();
  void fail(const std::string& why);

  comm::Group everybody_, group_;
  std::optional<comm::Group> copies_;
  const std::vector<Parameter> parameters_;
  const std::vector<ShardBucket> buckets_;
  const GradientShardOptions options_;
  struct Place {
    std::size_t bucket = 0;
    std::int64_t begin = 0;
  };
  std::vector<Place> slots_;                                ///< by parameter
  std::vector<at::Tensor> likes_;                           ///< by bucket: of the type and device of its sums
  std::map<std::size_t, ShardCodec> codecs_;                ///< of buckets whose gradients are encoded
  std::vector<std::int64_t> numel_;                         ///< by parameter, whose weights may be elsewhere
  std::shared_ptr<GradientBufferAllocator> made_in_place_;  ///< where parameters are the CPU's; else null

  std::vector<Filling> filling_;  ///< by bucket
  std::vector<bool> taken_;       ///< by parameter: in this pass
  std::vector<bool> adds_up_;     ///< by parameter: its slot has the gradients of earlier passes
  bool is_reducing_ = false;      ///< a pass is, whose buckets are not all on their way
  std::size_t next_bucket_ = 0;   ///< to start
  std::vector<at::Tensor> sums_;  ///< by bucket
  std::vector<at::Tensor> held_;  ///< by bucket: memory of its sum, where the pool keeps all
  std::vector<bool> has_sum_;     ///< by bucket: of this step
  std::vector<bool> reached_;     ///< by parameter: here, in this step
  bool has_samples_ = false;      ///< any backward of this step has run here
  std::vector<bool> used_;        ///< by parameter: on any rank
  at::Tensor flags_;              ///< how many ranks have reached each parameter, and how many had samples
  comm::Pending flags_pending_;
  bool completed_ = false;
  double waited_s_ = 0;
};

}  // namespace trireme::parallel
