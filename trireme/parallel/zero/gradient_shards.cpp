#include "trireme/parallel/zero/internal/gradient_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/gradient_hook.h"
#include "trireme/parallel/data/internal/unreached.h"

namespace trireme::parallel {
namespace {

bool is_kind_of(const at::Tensor& flat, const at::Tensor& parameter) {
  return flat.scalar_type() == parameter.scalar_type() && flat.device() == parameter.device();
}

}  // namespace

GradientShards::GradientShards(comm::Group group, std::vector<Parameter> parameters,
                               std::vector<ShardBucket> buckets, const GradientShardOptions& options)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      buckets_(std::move(buckets)),
      options_(options),
      places_(parameters_.size()),
      filling_(buckets_.size()),
      taken_(parameters_.size()),
      sums_(buckets_.size()),
      has_sum_(buckets_.size()),
      reached_(parameters_.size()),
      used_(parameters_.size()) {
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    for (const ShardSlot& slot : buckets_[number].slots) {
      places_[slot.parameter] = {.bucket = number, .begin = slot.begin};
      hook_gradient(parameters_[slot.parameter].tensor, parameters_[slot.parameter].name,
                    [this, parameter = slot.parameter] { on_gradient(parameter); });
    }
  }
  flags_ = group_.allocate(static_cast<std::int64_t>(parameters_.size()) + 1, at::kInt);
}

GradientShards::~GradientShards() {
  for (const ShardBucket& bucket : buckets_) {
    for (const ShardSlot& slot : bucket.slots) unhook_gradient(parameters_[slot.parameter].tensor);
  }
  if (under_way()) group_.fail("the sharded weights of a model are gone in the middle of a reduction");
}

void GradientShards::begin() {
  if (under_way() || completed_) {
    group_.fail(
        "a step ended before the gradients of all shards were reduced; the ranks are no longer in step: end "
        "the run on all of them and go on from a checkpoint");
  }
  group_.check();
  is_reducing_ = false;
  has_samples_ = false;
  reached_.assign(parameters_.size(), false);
}

void GradientShards::begin_pass() {
  is_reducing_ = true;
  next_bucket_ = 0;
  taken_.assign(parameters_.size(), false);
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    filling_[i] = {.flat = {}, .left = buckets_[i].slots.size()};
}

void GradientShards::on_gradient(std::size_t number) {
  has_samples_ = true;
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

/// The gradient goes into its bucket, and the parameter has none any more.
void GradientShards::take(std::size_t number) {
  const auto [bucket, begin] = places_[number];
  const at::Tensor& parameter = parameters_[number].tensor;
  Filling& filling = filling_[bucket];
  if (!filling.flat.defined()) filling.flat = spare_for(bucket);
  at::Tensor& gradient = parameter.mutable_grad();
  const at::IntArrayRef sizes = gradient.defined() ? gradient.sizes() : parameter.sizes();
  const at::Tensor slot = filling.flat.narrow(0, begin, c10::multiply_integers(sizes)).view(sizes);
  if (gradient.defined()) {
    copy_gradient(slot, gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
    gradient.reset();
  } else {
    slot.zero_();
  }
  taken_[number] = true;
  --filling.left;
}

void GradientShards::start_ready() {
  while (next_bucket_ < buckets_.size() && filling_[next_bucket_].left == 0) start(next_bucket_++);
}

void GradientShards::start(std::size_t bucket) {
  Reduction reduction{.bucket = bucket, .flat = std::move(filling_[bucket].flat), .part = {}, .pending = {}};
  const at::Tensor whole = reduction.flat.narrow(0, 0, buckets_[bucket].part * group_.size());
  reduction.part = at::empty({buckets_[bucket].part}, whole.options());
  reduction.pending = group_.reduce_scatter_async(
      reduction.part, whole,
      options_.scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum);
  reductions_.push_back(std::move(reduction));
}

/// Memory for a bucket. What lies between its parameters is of no concern: it is added up, and nobody's.
at::Tensor GradientShards::spare_for(std::size_t bucket) {
  const at::Tensor& parameter = parameters_[buckets_[bucket].slots.front().parameter].tensor;
  const std::int64_t numel = buckets_[bucket].part * group_.size();
  const auto fits = [&](const at::Tensor& spare) {
    return is_kind_of(spare, parameter) && spare.numel() >= numel;
  };
  const auto filling = static_cast<std::size_t>(
      std::ranges::count_if(filling_, [](const Filling& each) { return each.flat.defined(); }));
  while (!reductions_.empty() && reductions_.size() + filling >= options_.most_buckets) retire_oldest();
  const auto spare = std::ranges::find_if(spares_, fits);
  if (spare != spares_.end()) {
    at::Tensor flat = std::move(*spare);
    spares_.erase(spare);
    return flat;
  }
  std::int64_t largest = numel;
  for (const ShardBucket& other : buckets_) {
    if (is_kind_of(parameters_[other.slots.front().parameter].tensor, parameter))
      largest = std::max(largest, other.part * group_.size());
  }
  return group_.allocate(options_.most_buckets < buckets_.size() ? largest : numel,
                         parameter.options().requires_grad(false));
}

void GradientShards::retire_oldest() {
  const at::NoGradGuard no_grad;
  Reduction oldest = std::move(reductions_.front());
  reductions_.pop_front();
  const double before = now_s();
  oldest.pending.wait();
  waited_s_ += now_s() - before;
  spares_.push_back(std::move(oldest.flat));
  at::Tensor& sum = sums_[oldest.bucket];
  sum = has_sum_[oldest.bucket] ? sum.add_(oldest.part) : oldest.part;
  has_sum_[oldest.bucket] = true;
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
  while (!reductions_.empty()) retire_oldest();
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
