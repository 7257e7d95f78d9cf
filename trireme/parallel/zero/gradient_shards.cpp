#include "trireme/parallel/zero/internal/gradient_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/gradient_hook.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/unreached.h"

namespace trireme::parallel {

GradientShards::GradientShards(comm::Group everybody, comm::Group group, std::vector<Parameter> parameters,
                               std::vector<ShardBucket> buckets, const GradientShardOptions& options)
    : everybody_(std::move(everybody)),
      group_(std::move(group)),
      copies_(options.copies),
      parameters_(std::move(parameters)),
      buckets_(std::move(buckets)),
      options_(options),
      slots_(parameters_.size()),
      numel_(parameters_.size()),
      filling_(buckets_.size()),
      taken_(parameters_.size()),
      adds_up_(parameters_.size()),
      sums_(buckets_.size()),
      held_(buckets_.size()),
      has_sum_(buckets_.size()),
      reached_(parameters_.size()),
      used_(parameters_.size()) {
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    const at::Tensor& first = parameters_[buckets_[number].slots.front().parameter].tensor;
    likes_.push_back(at::empty({0}, first.options().dtype(buckets_[number].type).requires_grad(false)));
    options_.pool->expect(numel_of(number), likes_.back());
    for (const ShardSlot& slot : buckets_[number].slots) {
      numel_[slot.parameter] = slot.numel;
      slots_[slot.parameter] = {.bucket = number, .begin = slot.begin};
      hook_gradient(parameters_[slot.parameter].tensor, parameters_[slot.parameter].name,
                    [this, parameter = slot.parameter] { on_gradient(parameter); });
    }
  }
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) names.push_back(parameter.name);
  if (reduces_whole()) options_.hook->prepare(group_, whole_gradients());
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    if (!buckets_[number].use.is_encoded || !options_.hook->encodes_runs()) continue;
    for (const ShardSlot& slot : buckets_[number].slots)
      options_.hook->add(names[slot.parameter], whole_gradient(number, slot));
    codecs_.try_emplace(number, group_, buckets_[number], names, options_.hook);
  }
  if (parameters_.front().tensor.is_cpu())
    made_in_place_ = std::make_shared<GradientBufferAllocator>(
        parameters_.size(), [this](std::size_t number) { return place_of(number); });
  flags_ = everybody_.allocate(static_cast<std::int64_t>(parameters_.size()) + 1, at::kInt);
}

GradientShards::~GradientShards() {
  for (const ShardBucket& bucket : buckets_) {
    for (const ShardSlot& slot : bucket.slots) unhook_gradient(parameters_[slot.parameter].tensor);
  }
  const bool unfinished = under_way();
  options_.pool->forget(this);
  if (unfinished) fail("the sharded weights of a model are gone in the middle of a reduction");
}

void GradientShards::begin() {
  give_up("another step begins");
  for (const comm::Group* group : {&everybody_, &group_}) group->check();
  if (made_in_place_) {
    made_in_place_->stop();
    made_in_place_->begin_step();
  }
  for (Filling& filling : filling_) {
    if (filling.flat.defined()) options_.pool->give_back(std::exchange(filling.flat, {}));
  }
  sums_.assign(buckets_.size(), {});
  for (at::Tensor& flat : held_) {
    if (flat.defined()) options_.pool->give_back(std::exchange(flat, {}));
  }
  is_reducing_ = false;
  has_samples_ = false;
  reached_.assign(parameters_.size(), false);
  adds_up_.assign(parameters_.size(), false);
}

void GradientShards::give_up(const std::string& why) {
  if (!under_way()) return;
  fail(text("a step ended before the gradients of all shards were reduced (", why,
            "); the ranks are no longer in step: end the run on all of them and resume from a checkpoint"));
}

/// Fails all groups in which ranks of the step may be waiting.
void GradientShards::fail(const std::string& why) {
  everybody_.fail(why);
  group_.fail(why);
  if (copies_) copies_->fail(why);
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
  if (completed_) {
    throw InvalidArgument(text("parameter '", parameters_[number].name,
                               "' got a gradient after its reduction: a graph that was kept was run through "
                               "again, over several uses of the parameter; keep none (retain_graph), or "
                               "train with parallel.zero = 0"));
  }
  has_samples_ = true;
  if (!reached_[number] || is_reducing_) note_place(number);
  reached_[number] = true;
  if (!is_reducing_) {
    if (is_rounded(number)) set_aside(number);
    return;
  }
  if (taken_[number]) {
    throw InvalidArgument(text("parameter '", parameters_[number].name,
                               "' got a gradient twice in one backward pass, the second one after it was "
                               "taken for its reduction; train with parallel.zero = 0"));
  }
  const at::NoGradGuard no_grad;
  take(number);
  start_ready();
}

/// Sums must not be rounded: the gradient of the pass is accumulated in the bucket.
void GradientShards::set_aside(std::size_t number) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameters_[number].tensor.mutable_grad();
  put(number, slot_of(number), gradient);
  gradient.reset();
  adds_up_[number] = true;
}

/// Records the allocation that became the gradient.
void GradientShards::note_place(std::size_t number) {
  if (is_rounded(number)) return;  // its dtype differs from the bucket's
  const at::Tensor& gradient = parameters_[number].tensor.grad();
  if (made_in_place_ && gradient.layout() == at::kStrided && gradient.is_contiguous())
    made_in_place_->arrived(number, gradient);
}

/// The parameter's gradient in its bucket. Allocates the bucket if needed.
at::Tensor GradientShards::slot_of(std::size_t number) {
  const auto [bucket, begin] = slots_[number];
  Filling& filling = filling_[bucket];
  if (!filling.flat.defined()) {
    const double before = options_.pool->waited_s();
    filling.flat = options_.pool->take(numel_of(bucket), likes_[bucket]);
    waited_s_ += options_.pool->waited_s() - before;
  }
  return filling.flat.narrow(0, begin, numel_[number]);
}

/// Undefined if the bucket of this pass is in transfer.
at::Tensor GradientShards::place_of(std::size_t number) {
  const at::NoGradGuard no_grad;
  const bool is_gone = is_reducing_ && slots_[number].bucket < next_bucket_;
  return is_gone ? at::Tensor() : slot_of(number);
}

/// Another tensor uses the bucket's memory and keeps it; the bucket gets a copy.
void GradientShards::move_elsewhere(std::size_t bucket) {
  const at::Tensor before = filling_[bucket].flat;
  filling_[bucket].flat = options_.pool->allocate(before.numel(), before);
  filling_[bucket].flat.copy_(before);
}

/// Moves the gradient into its bucket, and resets the parameter's gradient.
void GradientShards::take(std::size_t number) {
  at::Tensor& gradient = parameters_[number].tensor.mutable_grad();
  at::Tensor slot = slot_of(number);
  const bool is_there = gradient.defined() && gradient.layout() == at::kStrided && gradient.is_contiguous() &&
                        gradient.const_data_ptr() == slot.const_data_ptr() && has_memory_alone(gradient);
  if (!is_there) {
    if (made_in_place_ && made_in_place_->is_leased(number)) {
      move_elsewhere(slots_[number].bucket);
      slot = slot_of(number);
    }
    put(number, slot, gradient);
  }
  gradient.reset();
  adds_up_[number] = false;
  taken_[number] = true;
  --filling_[slots_[number].bucket].left;
}

/// Undefined: the pass has brought no gradient.
void GradientShards::put(std::size_t number, at::Tensor slot, const at::Tensor& gradient) {
  if (!gradient.defined()) {
    if (!adds_up_[number]) slot.zero_();
    return;
  }
  const at::Tensor dense = gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
  const at::Tensor place = slot.view(dense.sizes());
  if (adds_up_[number]) {
    at::Tensor(place).add_(dense);
  } else {
    copy_gradient(place, dense);
  }
}

void GradientShards::start_ready() {
  while (next_bucket_ < buckets_.size() && filling_[next_bucket_].left == 0) start(next_bucket_++);
}

void GradientShards::start(std::size_t bucket) {
  finish_stages();
  at::Tensor flat = std::exchange(filling_[bucket].flat, {});
  // The padding between parameters is summed too, and never read.
  const at::Tensor whole = flat.narrow(0, 0, numel_of(bucket));
  if (reduces_whole()) return start_whole(bucket, std::move(flat));
  if (codecs_.contains(bucket)) return start_encoded(bucket, std::move(flat));
  at::Tensor part = options_.pool->keeps_all() ? part_of(bucket, whole)
                                               : at::empty({buckets_[bucket].part}, whole.options());
  count_as(MemoryKind::kGradients, part);
  count(static_cast<std::int64_t>(whole.nbytes() - part.nbytes()));
  comm::Pending pending = group_.reduce_scatter_async(
      part, whole, options_.scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum);
  options_.pool->reduce(
      this, flat, [pending = std::move(pending)]() mutable { pending.wait(); },
      [this, bucket, part, flat] { add_part(bucket, part, flat); });
}

/// This rank's part.
at::Tensor GradientShards::part_of(std::size_t bucket, const at::Tensor& whole) const {
  const std::int64_t numel = buckets_[bucket].part;
  return whole.narrow(0, group_.rank() * numel, numel);
}

void GradientShards::start_encoded(std::size_t bucket, at::Tensor flat) {
  auto [wait, sum] = codecs_.at(bucket).start(flat.narrow(0, 0, numel_of(bucket)));
  const auto take_sum = [this, bucket, flat, sum = std::move(sum)] {
    at::Tensor part = sum();
    if (options_.scale == ReduceScale::kMean) part.div_(group_.size());
    add_part(bucket, part, flat);
  };
  options_.pool->reduce(this, flat, std::move(wait), take_sum);
}

/// The sum of whole gradients is on all ranks; each rank takes its part.
void GradientShards::start_whole(std::size_t bucket, at::Tensor flat) {
  GradientBucket whole{.flat = flat.narrow(0, 0, numel_of(bucket)), .flag = {}, .gradients = {}};
  for (const ShardSlot& slot : buckets_[bucket].slots) {
    const Parameter& parameter = parameters_[slot.parameter];
    whole.gradients.emplace_back(parameter.name,
                                 whole.flat.narrow(0, slot.begin, slot.numel).view(parameter.tensor.sizes()));
  }
  const at::Tensor mine = part_of(bucket, whole.flat);
  options_.pool->reduce(this, flat, options_.hook->start(group_, whole, options_.scale),
                        [this, bucket, mine, flat] {
                          const at::Tensor part = options_.pool->keeps_all() ? mine : mine.clone();
                          count_as(MemoryKind::kGradients, part);
                          add_part(bucket, part, flat);
                        });
}

/// A reduction of several messages continues only when a caller waits for it. All ranks wait at the same
/// place among all messages. So the reduction may overlap with backward until the next bucket, or the end of
/// the pass.
void GradientShards::finish_stages() {
  if (!goes_in_stages()) return;
  const double before = options_.pool->waited_s();
  options_.pool->wait_for(this);
  waited_s_ += options_.pool->waited_s() - before;
}

/// Whole gradients in the order of buckets; without memory.
optim::NamedTensors GradientShards::whole_gradients() const {
  optim::NamedTensors gradients;
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    for (const ShardSlot& slot : buckets_[number].slots)
      gradients.emplace_back(parameters_[slot.parameter].name, whole_gradient(number, slot));
  }
  return gradients;
}

/// A tensor with size, device and the dtype of the reduction, which differs from the dtype of a rounded
/// parameter. It has no memory: it must not be read or written.
at::Tensor GradientShards::whole_gradient(std::size_t bucket, const ShardSlot& slot) const {
  at::Tensor gradient = at::empty({0}, likes_[bucket].options());
  gradient.unsafeGetTensorImpl()->set_sizes_contiguous(parameters_[slot.parameter].tensor.sizes());
  return gradient;
}

/// `flat` is the memory of the bucket. If the pool keeps all memory, the sum may stay there.
void GradientShards::add_part(std::size_t bucket, const at::Tensor& part, const at::Tensor& flat) {
  const at::NoGradGuard no_grad;
  at::Tensor& sum = sums_[bucket];
  const bool is_first = !has_sum_[bucket];
  sum = is_first ? part : sum.add_(part);
  has_sum_[bucket] = true;
  if (!options_.pool->keeps_all()) return;
  if (is_first && part.is_alias_of(flat)) {
    held_[bucket] = flat;
  } else {
    options_.pool->give_back(flat);
  }
}

void GradientShards::end_pass() {
  const at::NoGradGuard no_grad;
  for (const ShardBucket& bucket : buckets_) {
    for (const ShardSlot& slot : bucket.slots) {
      if (!taken_[slot.parameter]) take(slot.parameter);
    }
    start_ready();
  }
  finish_stages();
  is_reducing_ = false;
}

void GradientShards::complete() {
  if (completed_) return;
  if (!is_reducing_) begin_pass();
  end_pass();
  auto* flags = flags_.mutable_data_ptr<int>();
  for (std::size_t i = 0; i < reached_.size(); ++i) flags[i] = reached_[i] ? 1 : 0;
  flags[reached_.size()] = has_samples_ ? 1 : 0;
  flags_pending_ = everybody_.all_reduce_async(flags_);
  completed_ = true;
}

/// Once per step, for any number of passes: reduces the sums of a shard group over its copies.
void GradientShards::reduce_over_copies() {
  if (!copies_) return;
  const double before = now_s();
  std::vector<comm::Pending> pending;
  for (at::Tensor& sum : sums_) {
    count(all_reduce_bytes(*copies_, sum));
    pending.push_back(copies_->all_reduce_async(
        sum, options_.scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum));
  }
  for (comm::Pending& each : pending) each.wait();
  waited_s_ += now_s() - before;
}

void GradientShards::finish() {
  if (!completed_) return;
  const double before = options_.pool->waited_s();
  options_.pool->wait_for(this);
  waited_s_ += options_.pool->waited_s() - before;
  reduce_over_copies();
  const double began_s = now_s();
  std::exchange(flags_pending_, {}).wait();
  waited_s_ += now_s() - began_s;
  completed_ = false;
  has_sum_.assign(buckets_.size(), false);
  const auto* flags = flags_.const_data_ptr<int>();
  for (std::size_t i = 0; i < used_.size(); ++i) used_[i] = flags[i] > 0;
  if (options_.unused != UnusedParameters::kError) return;
  const std::string unreached = unreached_of_all_ranks();
  if (!unreached.empty()) reject_unreached(unreached, kUnreachedAdvice);
}

/// Parameters that need a gradient and that a rank with samples has not reached. The same text on all ranks.
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
  return any ? names_by_rank(everybody_, mine) : "";
}

}  // namespace trireme::parallel
