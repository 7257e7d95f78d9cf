#include "trireme/parallel/zero/internal/sharded_weights.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/parallel/zero/internal/released_parameter.h"

namespace trireme::parallel {
namespace {

/// The hook of the options; null: gradients are not compressed.
std::shared_ptr<ShardingHook> sharding_hook(const StageWeightsOptions& options) {
  if (!options.reduction.hook) return nullptr;
  auto hook = std::dynamic_pointer_cast<ShardingHook>(options.reduction.hook);
  require(hook != nullptr, "sharded gradients are reduced by a hook of make_shard_hook(), and this one (",
          options.reduction.hook->describe(), ") is for whole ones");
  require(!(hook->encodes_runs() || hook->reduces_whole_gradients()) || !options.shard_groups,
          "within groups of replicas (ShardGroups) gradients are sharded without compression; shard over all "
          "ranks, "
          "or leave the compression out: found ",
          hook->describe());
  return hook;
}

/// With shared memory there is no gather to compress.
bool encodes_weights(const ShardingHook& hook, const StageWeightsOptions& options,
                     const at::Tensor& weights) {
  const comm::Group& group = options.shard_groups ? options.shard_groups->shards : *options.data;
  return hook.weights() != nullptr &&
         (options.offload != nullptr || !group.has_shared_memory(weights.device()));
}

ShardUse use_of(const Parameter& parameter, const StageWeightsOptions& options, const ShardingHook* hook) {
  const ZeroOptions& zero = options.zero;
  const bool is_rounded = options.rounded.contains(parameter.name),
             encodes = hook != nullptr &&
                       (hook->encodes_runs() || encodes_weights(*hook, options, parameter.tensor));
  return {.working_type = is_rounded ? zero.working_type : std::nullopt,
          .is_kept = zero.stage != ZeroStage::kParameters || parameter.tensor.numel() < zero.persistent_below,
          .is_encoded = encodes && hook->takes(parameter.tensor)};
}

/// From the last parameter to the first: about the order in which backward reaches them.
std::vector<std::size_t> backwards(const std::vector<Parameter>& parameters, bool that_learn) {
  std::vector<std::size_t> order;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    if (parameters[i].tensor.requires_grad() == that_learn) order.push_back(i);
  }
  return order;
}

DataParallelOptions on_request(DataParallelOptions options) {
  options.end = ReductionEnd::kOnRequest;
  return options;
}

}  // namespace

ShardedWeights::ShardedWeights(Replica replica, const StageWeightsOptions& options)
    : StageWeights(replica.parameters),
      everybody_(*options.data),
      group_(options.shard_groups ? options.shard_groups->shards : *options.data),
      shard_groups_(options.shard_groups),
      stage_(options.stage),
      keeps_gradients_(options.buckets->keeps_all()) {
  check_replicas(everybody_, replica, options.reduction);
  broadcast_tensors(everybody_, tensors_of(replica.buffers), /*root=*/0);
  // Each group starts from the values of its first rank, which must equal those of the first rank of all.
  if (shard_groups_) broadcast_tensors(everybody_, tensors_of(replica.parameters), /*root=*/0);
  if (options.reduction.broadcast_buffers) {
    for (auto& pack : packs_of(tensors_of(replica.buffers), std::int64_t{25} << 20))
      buffers_.emplace_back(everybody_, pack);
  }
  lay_out(std::move(replica), options);
  weights_->release();
}

void ShardedWeights::lay_out(Replica replica, const StageWeightsOptions& options) {
  const ZeroOptions& zero = options.zero;
  const DataParallelOptions& reduction = options.reduction;
  Replica whole;
  bool whole_learns = false;
  for (const auto& [name, parameter] : replica.parameters) {
    const bool stays_whole = options.shared.contains(name) || parameter.numel() == 0;
    if (!stays_whole) {
      sharded_.push_back({.name = name, .tensor = parameter, .view = {}});
      continue;
    }
    mine_.emplace_back(name, parameter);
    if (options.common.contains(name)) continue;
    whole.parameters.emplace_back(name, parameter);
    whole_learns = whole_learns || parameter.requires_grad();
  }
  if (options.exact) exact_.emplace(everybody_, replica.parameters);
  if (whole_learns && !exact_) shared_.emplace(everybody_, std::move(whole), on_request(reduction));
  const std::shared_ptr<ShardingHook> hook = sharding_hook(options);
  ShardLayout layout = shard_layout(reduction, group_.size(), options.buckets->limits());
  if (zero.whole_tensors) layout.cut = ShardCut::kBetweenTensors;
  layout.use_of = [&](const Parameter& each) { return use_of(each, options, hook.get()); };
  const auto laid_out = [&](bool that_learn) {
    return lay_out_shards(sharded_, backwards(sharded_, that_learn), layout);
  };
  const std::vector<ShardBucket> that_learn = laid_out(true);
  std::vector<ShardBucket> buckets = that_learn;
  for (ShardBucket& frozen : laid_out(false)) buckets.push_back(std::move(frozen));
  weights_.emplace(group_, sharded_, buckets, WeightShardOptions{.offload = options.offload, .hook = hook});
  take_pieces(buckets);
  for (const Parameter& each : sharded_) marks_.push_back(reduced_gradient(each.name, each.tensor));
  if (that_learn.empty() || exact_) return;
  gradients_.emplace(
      everybody_, group_, sharded_, that_learn,
      GradientShardOptions{.unused = reduction.unused_parameters,
                           .scale = reduction.scale,
                           .pool = options.buckets,
                           .copies = shard_groups_ ? std::optional(shard_groups_->copies) : std::nullopt,
                           .hook = hook});
}

/// In the order of the model.
void ShardedWeights::take_pieces(const std::vector<ShardBucket>& buckets) {
  std::vector<ShardPiece> pieces = pieces_of_rank(buckets, group_.rank());
  std::ranges::sort(pieces, {}, &ShardPiece::parameter);
  for (const ShardPiece& piece : pieces) {
    const Parameter& parameter = sharded_[piece.parameter];
    const at::Tensor tensor = weights_->piece(piece, parameter.tensor.sizes());
    tensor.set_requires_grad(parameter.tensor.requires_grad());
    mine_.emplace_back(parameter.name, tensor);
    pieces_[parameter.name] = {
        .global_sizes = parameter.tensor.sizes().vec(), .begin = piece.begin, .sizes = tensor.sizes().vec()};
    if (tensor.requires_grad()) updated_.push_back({.tensor = tensor, .piece = piece});
  }
}

void ShardedWeights::begin(const schedule::Program& program, int rank) {
  num_left_ = num_weight_gradients(program, rank, stage_);
  begin_step();
}

void ShardedWeights::begin_step() {
  check();
  unmark_gradients();
  if (gradients_) gradients_->begin();
  if (exact_) exact_->begin();
  shared_adds_up_.reset();
  if (shared_) shared_adds_up_.emplace(*shared_);
}

void ShardedWeights::before(const schedule::Action& action) {
  weights_->wait();
  if (!schedule::makes_weight_gradient(action.kind)) return;
  --num_left_;
  begin_backward(num_left_ == 0 || !keeps_gradients_ ? Gradients::kReduced : Gradients::kKept);
}

void ShardedWeights::begin_backward(Gradients of_pass) {
  if (!gradients_) return;
  if (of_pass == Gradients::kReduced) gradients_->begin_pass();
  gradients_->begin_backward();
}

void ShardedWeights::after(const schedule::Action& action) {
  end_backward();
  if (exact_ && schedule::makes_weight_gradient(action.kind)) exact_->add(action.microbatch);
  const bool others_come = schedule::makes_weight_gradient(action.kind) && num_left_ > 0;
  if (gradients_ && others_come && !keeps_gradients_) gradients_->end_pass();
}

void ShardedWeights::end_backward() {
  if (gradients_) gradients_->end_backward();
}

void ShardedWeights::reduce() {
  if (gradients_) gradients_->complete();
  shared_adds_up_.reset();
  if (shared_) shared_->start_reduction();
  for (Coalesced& buffers : buffers_) buffers.start(everybody_, /*root=*/0);
}

void ShardedWeights::finish() {
  if (shared_) shared_->finish_reduction();
  const double began_s = now_s();
  for (Coalesced& buffers : buffers_) buffers.finish(everybody_);
  buffers_waited_s_ += now_s() - began_s;
  if (exact_) return take_exact_sums();
  if (gradients_) gradients_->finish();  // it may reject gradients: the rest of the step is complete by then
  for (const auto& [tensor, piece] : updated_) {
    if (!gradients_->used(piece.parameter)) continue;
    // Not a view: Optimizer::zero_grad() detaches a gradient in place.
    const at::Tensor sum = tensor_in(gradients_->part(piece.bucket), piece.place, tensor.sizes());
    at::Tensor& gradient = tensor.mutable_grad();
    gradient = gradient.defined() ? gradient.add_(sum) : sum;
  }
  mark_gradients();
}

/// Code that reads the gradients of the module's own parameters gets an error that tells where they are.
void ShardedWeights::mark_gradients() {
  if (!gradients_) return;
  for (std::size_t number = 0; number < sharded_.size(); ++number) {
    const at::Tensor& parameter = sharded_[number].tensor;
    if (parameter.requires_grad()) parameter.mutable_grad() = marks_[number];
  }
}

void ShardedWeights::unmark_gradients() {
  for (std::size_t number = 0; number < sharded_.size(); ++number) {
    at::Tensor& gradient = sharded_[number].tensor.mutable_grad();
    if (gradient.defined() && gradient.is_same(marks_[number])) gradient.reset();
  }
}

/// The pieces' gradients are views of the leaves' gradients.
void ShardedWeights::take_exact_sums() {
  exact_->finish();
  for (const auto& [tensor, piece] : updated_) {
    const at::Tensor& whole = sharded_[piece.parameter].tensor.grad();
    tensor.mutable_grad() = whole.defined() ? tensor_in(whole, piece.begin, tensor.sizes()) : whole;
  }
}

void ShardedWeights::show_newest() {
  weights_->gather();
  weights_->wait();
}

void ShardedWeights::zero_grad() {
  StageWeights::zero_grad();
  for (const auto& [tensor, piece] : updated_) tensor.mutable_grad().reset();
}

double ShardedWeights::waited_s() const {
  return buffers_waited_s_ + (weights_ ? weights_->waited_s() : 0) + (exact_ ? exact_->waited_s() : 0) +
         (gradients_ ? gradients_->waited_s() : 0) + (shared_ ? shared_->statistics().waited_s : 0);
}

}  // namespace trireme::parallel
