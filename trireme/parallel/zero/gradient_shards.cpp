#include "trireme/parallel/zero/internal/gradient_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/gradient_hook.h"
#include "trireme/parallel/data/internal/unreached.h"

namespace trireme::parallel {

GradientShards::GradientShards(comm::Group group, std::vector<Parameter> parameters,
                               std::vector<ShardBucket> buckets, const GradientShardOptions& options)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      buckets_(std::move(buckets)),
      options_(options),
      slots_(parameters_.size()),
      numel_(parameters_.size()),
      filling_(buckets_.size()),
      taken_(parameters_.size()),
      sums_(buckets_.size()),
      has_sum_(buckets_.size()),
      reached_(parameters_.size()),
      used_(parameters_.size()) {
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    options_.pool->expect(numel_of(number), first_of(number));
    for (const ShardSlot& slot : buckets_[number].slots) {
      numel_[slot.parameter] = slot.numel;
      slots_[slot.parameter] = {.bucket = number, .begin = slot.begin};
      hook_gradient(parameters_[slot.parameter].tensor, parameters_[slot.parameter].name,
                    [this, parameter = slot.parameter] { on_gradient(parameter); });
    }
  }
  if (parameters_.front().tensor.is_cpu())
    made_in_place_.emplace(parameters_.size(), [this](std::size_t number) { return place_of(number); });
  flags_ = group_.allocate(static_cast<std::int64_t>(parameters_.size()) + 1, at::kInt);
}

GradientShards::~GradientShards() {
  for (const ShardBucket& bucket : buckets_) {
    for (const ShardSlot& slot : bucket.slots) unhook_gradient(parameters_[slot.parameter].tensor);
  }
  const bool unfinished = under_way();
  options_.pool->forget(this);
  if (unfinished) group_.fail("the sharded weights of a model are gone in the middle of a reduction");
}

void GradientShards::begin() {
  if (under_way()) {
    group_.fail(
        "a step ended before the gradients of all shards were reduced; the ranks are no longer in step: end "
        "the run on all of them and go on from a checkpoint");
  }
  group_.check();
  if (made_in_place_) made_in_place_->begin_step();
  for (Filling& filling : filling_) {
    if (filling.flat.defined()) options_.pool->give_back(std::exchange(filling.flat, {}));
  }
  sums_.assign(buckets_.size(), {});
  is_reducing_ = false;
  has_samples_ = false;
  reached_.assign(parameters_.size(), false);
}

bool GradientShards::under_way() const {
  const bool has_begun = is_reducing_ && next_bucket_ > 0;
  const bool has_ended_some = std::ranges::find(has_sum_, true) != has_sum_.end();
  return completed_ || has_begun || has_ended_some || options_.pool->is_reducing(this);
}

void GradientShards::begin_pass() {
  is_reducing_ = true;
  next_bucket_ = 0;
  taken_.assign(parameters_.size(), false);
  for (std::size_t i = 0; i < buckets_.size(); ++i) filling_[i].left = buckets_[i].slots.size();
}

void GradientShards::begin_backward() {
  if (made_in_place_) made_in_place_->start();
}

void GradientShards::end_backward() {
  if (made_in_place_) made_in_place_->stop();
}

void GradientShards::on_gradient(std::size_t number) {
  has_samples_ = true;
  if (!reached_[number] || is_reducing_) note_place(number);
  reached_[number] = true;
  if (!is_reducing_) return;
  if (taken_[number]) {
    throw InvalidArgument(text("parameter '", parameters_[number].name,
                               "' got a gradient twice in one backward pass, the second one after it was "
                               "taken for its reduction; train with parallel.zero = 0"));
  }
  const at::NoGradGuard no_grad;
  take(number);
  start_ready();
}

/// What it has allocated its gradient from.
void GradientShards::note_place(std::size_t number) {
  const at::Tensor& gradient = parameters_[number].tensor.grad();
  if (made_in_place_ && gradient.layout() == at::kStrided && gradient.is_contiguous())
    made_in_place_->arrived(number, gradient);
}

/// Where the parameter's gradient lies in its bucket, which gets memory for it.
at::Tensor GradientShards::slot_of(std::size_t number) {
  const auto [bucket, begin] = slots_[number];
  Filling& filling = filling_[bucket];
  if (!filling.flat.defined()) {
    const double before = options_.pool->waited_s();
    filling.flat = options_.pool->take(numel_of(bucket), first_of(bucket));
    waited_s_ += options_.pool->waited_s() - before;
  }
  return filling.flat.narrow(0, begin, numel_[number]);
}

/// Undefined where the bucket of this pass is on its way.
at::Tensor GradientShards::place_of(std::size_t number) {
  const at::NoGradGuard no_grad;
  const bool is_gone = is_reducing_ && slots_[number].bucket < next_bucket_;
  return is_gone ? at::Tensor() : slot_of(number);
}

/// A tensor that is none of the bucket's gradients lies in its memory: it keeps that.
void GradientShards::move_elsewhere(std::size_t bucket) {
  const at::Tensor before = filling_[bucket].flat;
  filling_[bucket].flat = options_.pool->allocate(before.numel(), before);
  filling_[bucket].flat.copy_(before);
}

/// The gradient goes into its bucket, and the parameter has none any more.
void GradientShards::take(std::size_t number) {
  at::Tensor& gradient = parameters_[number].tensor.mutable_grad();
  at::Tensor slot = slot_of(number);
  const bool is_there = gradient.defined() && gradient.layout() == at::kStrided && gradient.is_contiguous() &&
                        gradient.const_data_ptr() == slot.const_data_ptr();
  if (!is_there) {
    if (made_in_place_ && made_in_place_->is_lent(number)) {
      move_elsewhere(slots_[number].bucket);
      slot = slot_of(number);
    }
    if (gradient.defined()) {
      const at::Tensor dense = gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
      copy_gradient(slot.view(dense.sizes()), dense);
    } else {
      slot.zero_();
    }
  }
  gradient.reset();
  taken_[number] = true;
  --filling_[slots_[number].bucket].left;
}

void GradientShards::start_ready() {
  while (next_bucket_ < buckets_.size() && filling_[next_bucket_].left == 0) start(next_bucket_++);
}

void GradientShards::start(std::size_t bucket) {
  at::Tensor flat = std::exchange(filling_[bucket].flat, {});
  // What lies between its parameters is of no concern: it is added up, and nobody's.
  const at::Tensor whole = flat.narrow(0, 0, numel_of(bucket));
  at::Tensor part = at::empty({buckets_[bucket].part}, whole.options());
  count_as(MemoryKind::kGradients, part);
  comm::Pending pending = group_.reduce_scatter_async(
      part, whole, options_.scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum);
  options_.pool->reduce(this, std::move(flat), std::move(pending),
                        [this, bucket, part] { add_part(bucket, part); });
}

void GradientShards::add_part(std::size_t bucket, const at::Tensor& part) {
  const at::NoGradGuard no_grad;
  at::Tensor& sum = sums_[bucket];
  sum = has_sum_[bucket] ? sum.add_(part) : part;
  has_sum_[bucket] = true;
}

const at::Tensor& GradientShards::first_of(std::size_t bucket) const {
  return parameters_[buckets_[bucket].slots.front().parameter].tensor;
}

void GradientShards::end_pass() {
  const at::NoGradGuard no_grad;
  for (const ShardBucket& bucket : buckets_) {
    for (const ShardSlot& slot : bucket.slots) {
      if (!taken_[slot.parameter]) take(slot.parameter);
    }
    start_ready();
  }
  is_reducing_ = false;
}

void GradientShards::complete() {
  if (completed_) return;
  if (!is_reducing_) begin_pass();
  end_pass();
  auto* flags = flags_.mutable_data_ptr<int>();
  for (std::size_t i = 0; i < reached_.size(); ++i) flags[i] = reached_[i] ? 1 : 0;
  flags[reached_.size()] = has_samples_ ? 1 : 0;
  flags_pending_ = group_.all_reduce_async(flags_);
  completed_ = true;
}

void GradientShards::finish() {
  if (!completed_) return;
  const double before = options_.pool->waited_s();
  options_.pool->wait_for(this);
  waited_s_ += options_.pool->waited_s() - before;
  std::exchange(flags_pending_, {}).wait();
  completed_ = false;
  has_sum_.assign(buckets_.size(), false);
  const auto* flags = flags_.const_data_ptr<int>();
  for (std::size_t i = 0; i < used_.size(); ++i) used_[i] = flags[i] > 0;
  if (options_.unused != UnusedParameters::kError) return;
  const std::string unreached = unreached_of_all_ranks();
  if (!unreached.empty()) refuse_unreached(unreached, kUnreachedAdvice);
}

/// Where a rank with samples has not reached a parameter that needs a gradient; the same on all ranks.
std::string GradientShards::unreached_of_all_ranks() {
  const auto* flags = flags_.const_data_ptr<int>();
  const int with_samples = flags[parameters_.size()];
  bool any = false;
  std::vector<std::string> mine;
  for (const ShardBucket& bucket : buckets_) {
    for (const ShardSlot& slot : bucket.slots) {
      any = any || flags[slot.parameter] < with_samples;
      if (has_samples_ && !reached_[slot.parameter]) mine.push_back(parameters_[slot.parameter].name);
    }
  }
  return any ? names_by_rank(group_, mine) : "";
}

}  // namespace trireme::parallel
