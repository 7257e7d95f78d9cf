// The part of the reducer that runs during backward. The part at its end is in reducer_finish.cpp.
#include "trireme/parallel/data/internal/reducer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/gradient_hook.h"

namespace trireme::parallel {

DistributedDataParallel::Reducer::Reducer(comm::Group the_group, Replica the_replica,
                                          const DataParallelOptions& the_options)
    : group(std::move(the_group)), replica(std::move(the_replica)), options(the_options) {
  require(options.bucket_mib > 0 && options.first_bucket_mib > 0, "bucket sizes have to be positive; found ",
          options.bucket_mib, " and ", options.first_bucket_mib, " MiB");
  require(options.check_replicas_every >= 0, "check_replicas_every must be at least 0; found ",
          options.check_replicas_every);
  collect_parameters();
  if (!options.hook) options.hook = make_comm_hook("none");
  if (group.size() == 1) return;
  optim::NamedTensors reduced;
  for (Parameter& parameter : parameters_) {
    if (!parameter.learns) continue;
    reduced.emplace_back(parameter.name, parameter.tensor);
    parameter.is_prepared = true;
  }
  options.hook->prepare(group, reduced);
  if (telemetry::Trace* trace = group.trace()) trace_ = &trace->add_lanes("buckets");
  lay_out_anew();
  if (std::ranges::any_of(parameters_, [](const Parameter& each) { return each.tensor.is_cpu(); })) {
    made_in_place_ = std::make_shared<GradientBufferAllocator>(
        parameters_.size(), [this](std::size_t number) { return place_of(number); });
  }
  build_buffers();
}

void DistributedDataParallel::Reducer::collect_parameters() {
  for (const auto& [name, tensor] : replica.parameters) {
    // A tied parameter has its first name here.
    if (!numbers_.emplace(tensor.unsafeGetTensorImpl(), parameters_.size()).second) continue;
    parameters_.push_back({.name = name,
                           .tensor = tensor,
                           .learns = tensor.requires_grad(),
                           .form = ParameterForm::of(tensor),
                           .place = {},
                           .view = {}});
  }
  require(std::ranges::any_of(parameters_, &Parameter::learns),
          "no parameter of the module requires a gradient: there is nothing to reduce");
}

void DistributedDataParallel::Reducer::build_buffers() {
  buffers_.clear();
  forms_of_buffers_.clear();
  for (const auto& [name, tensor] : replica.buffers) forms_of_buffers_.push_back(ParameterForm::of(tensor));
  if (!options.broadcast_buffers) return;
  for (auto& pack : packs_of(tensors_of(replica.buffers), std::int64_t{25} << 20))
    buffers_.emplace_back(group, pack);
}

/// Assigns the trainable parameters to buckets in new memory. Backward reaches the last layers first: without
/// an observed order, the reverse order is the best guess.
void DistributedDataParallel::Reducer::lay_out_anew() {
  memory_ = BucketMemory(options.hook->memory_of(group), parameters_);
  std::vector<std::size_t> order;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (parameters_[i].learns) order.push_back(i);
  }
  build_buckets(order);
}

void DistributedDataParallel::Reducer::attach() {
  if (group.size() == 1) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) hook_up(i);
}

void DistributedDataParallel::Reducer::detach() {
  if (group.size() == 1) return;
  if (made_in_place_) made_in_place_->stop();
  break_off("its DistributedDataParallel is gone");
  for (const Parameter& parameter : parameters_) unhook_gradient(parameter.tensor, parameter.hook);
}

void DistributedDataParallel::Reducer::on_gradient(std::size_t number) {
  const at::NoGradGuard no_grad;
  const GradientBufferAllocator::Pause pause;
  if (backward_over_) {
    break_off("another one began before finish_reduction() was called");
    group.check();
  }
  if (synchronise) {
    watch_graph_task();
    if (!running_) {
      reject_outside_of_join();
      check_module();
      group.check();
      announce_pass();
      begin_pass();
    }
  } else if (!is_checked) {
    check_module();
    is_checked = true;
  }
  try {
    take_gradient(number);
  } catch (const std::exception& error) {
    complaint_ = error.what();
    throw;
  }
}

void DistributedDataParallel::Reducer::take_gradient(std::size_t number) {
  Parameter& parameter = parameters_[number];
  if (!parameter.learns) return take_early_gradient(number);
  if (parameter.bucket == Parameter::kNoBucket || (synchronise && parameter.fired))
    reject_second_gradient(parameter);
  reject_stale_sum(parameter);
  adopt(number);
  parameter.used = true;
  parameter.used_version = static_cast<std::uint32_t>(parameter.view._version());
  if (!synchronise) return;
  if (!statistics.rebuilt) ready_order_.push_back(number);
  mark_ready(number);
  start_ready_buckets();
}

/// Moves the gradient into its place in the bucket. Without an earlier gradient, autograd provides a new
/// tensor. It was allocated in that place already, or is copied, which needs no zeroing. A gradient that is
/// in the bucket stays.
void DistributedDataParallel::Reducer::adopt(std::size_t number) {
  Parameter& parameter = parameters_[number];
  parameter.reduced = false;
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.is_same(parameter.view)) return;
  require(!gradient.is_sparse(), "the gradient of parameter '", parameter.name,
          "' is sparse; only dense gradients can be reduced");
  if (made_in_place_) {
    made_in_place_->start();
    made_in_place_->arrived(number, gradient);
  }
  if (!is_in_place(number)) {
    make_room(number);
    copy_gradient(parameter.view, gradient);
    statistics.copied_bytes += static_cast<std::int64_t>(parameter.view.nbytes());
  }
  gradient = parameter.view;
}

/// Whether the gradient is in the parameter's place: in the bucket's own memory, or the only tensor in a
/// leased place.
bool DistributedDataParallel::Reducer::is_in_place(std::size_t number) const {
  const at::Tensor &view = parameters_[number].view, &gradient = parameters_[number].tensor.grad();
  const bool lies_there = gradient.layout() == at::kStrided &&
                          gradient.const_data_ptr() == view.const_data_ptr() &&
                          gradient.scalar_type() == view.scalar_type() && gradient.sizes() == view.sizes() &&
                          gradient.strides() == view.strides();
  const bool is_leased = made_in_place_ && made_in_place_->is_leased(number);
  return lies_there && (!is_leased || has_memory_alone(gradient));
}

/// The place for the gradient that backward is about to allocate. Undefined if the current values there are
/// still needed.
at::Tensor DistributedDataParallel::Reducer::place_of(std::size_t number) const {
  const Parameter& parameter = parameters_[number];
  if (!statistics.rebuilt || parameter.bucket == Parameter::kNoBucket || backward_over_) return {};
  const bool is_free = !parameter.tensor.grad().defined() && !(running_ && parameter.fired) &&
                       !buckets_[parameter.bucket].wait;
  return is_free && !is_kept(parameter) ? parameter.place : at::Tensor();
}

/// Called before a write to the parameter's place. A gradient of an earlier pass that a caller has kept gets
/// separate memory. If another tensor uses the place, it keeps the memory. Gradients of this model are then
/// copied from now on.
void DistributedDataParallel::Reducer::make_room(std::size_t number) {
  if (is_kept(parameters_[number])) leave_to_holders(parameters_[number]);
  if (!made_in_place_ || !made_in_place_->is_leased(number)) return;
  Bucket& bucket = buckets_[parameters_[number].bucket];
  const at::Tensor memory =
      options.hook->memory_of(group).allocate(bucket.flat.numel(), bucket.flat.options());
  count_as(MemoryKind::kGradients, memory);
  BucketMemory::move_to(memory, bucket, parameters_);
  for (const std::size_t member : bucket.parameters) made_in_place_->moved(member);
  made_in_place_->end_leasing();
}

void DistributedDataParallel::Reducer::reject_second_gradient(const Parameter& parameter) {
  require(
      !usage_known_, "parameter '", parameter.name,
      "' got a gradient, but none in the first step; kStatic needs the same parameters in every step: use "
      "kFind");
  throw InvalidArgument(text(
      "the gradient of parameter '", parameter.name,
      "' became ready twice before it was reduced: the parameter is used in two nested backward passes; run "
      "all but the last pass under no_sync()"));
}

/// The mean of (mean so far + new) is correct, the sum of (sum so far + new) is not.
void DistributedDataParallel::Reducer::reject_stale_sum(const Parameter& parameter) const {
  if (options.scale != ReduceScale::kSum || !parameter.reduced) return;
  const at::Tensor& gradient = parameter.tensor.grad();
  const bool only_added_to =
      gradient.is_same(parameter.view) && gradient._version() == parameter.reduced_version + 1;
  require(!only_added_to, "the gradient of parameter '", parameter.name,
          "' is added to one that is already summed over the ranks; with ReduceScale::kSum call zero_grad() "
          "after every reduction, and no_sync() for all but the last backward pass of a step");
}

void DistributedDataParallel::Reducer::reject_outside_of_join() const {
  if (!before_pass) reject_beside_join(*joins_, group, "a synchronised backward pass of another wrapper");
}

void DistributedDataParallel::Reducer::announce_pass() {
  if (!before_pass) return;
  before_pass();
  announced_ = true;
}

void DistributedDataParallel::Reducer::begin_pass() {
  follow_module();
  running_ = true;
  buffers_over_ = false;
  complaint_.clear();
  next_bucket_ = 0;
  num_unready_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.parameters.size();
    num_unready_ += bucket.pending;
  }
  for (Parameter& parameter : parameters_) parameter.fired = false;
  for (const std::size_t number : silent_) fill_missing_gradient(number);
  start_ready_buckets();
}

void DistributedDataParallel::Reducer::end_of_graph_task() {
  if (!running_) return;
  const bool is_nested = torch::autograd::get_current_node() != nullptr;
  if (is_nested && num_unready_ > 0) return;
  backward_over_ = true;
  if (options.end == ReductionEnd::kWithBackward) finish_reduction();
}

void DistributedDataParallel::Reducer::mark_ready(std::size_t number) {
  parameters_[number].fired = true;
  --buckets_[parameters_[number].bucket].pending;
  --num_unready_;
}

/// Bucket i starts only after bucket i - 1, so that all ranks issue the same operations in the same order.
void DistributedDataParallel::Reducer::start_ready_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    Bucket& bucket = buckets_[next_bucket_++];
    if (trace_ != nullptr) bucket.started_ns = now_ns();
    bucket.wait = options.hook->start(group, bucket, options.scale);
  }
}

void DistributedDataParallel::Reducer::build_buckets(const std::vector<std::size_t>& ready_order) {
  constexpr double kMib = 1024.0 * 1024.0;
  buckets_ =
      memory_.lay_out(parameters_, assign_buckets(parameters_, ready_order,
                                                  static_cast<std::int64_t>(options.first_bucket_mib * kMib),
                                                  static_cast<std::int64_t>(options.bucket_mib * kMib)));
  statistics.bucket_bytes.clear();
  for (const Bucket& bucket : buckets_)
    statistics.bucket_bytes.push_back(static_cast<std::int64_t>(bucket.flat.nbytes()));
}

}  // namespace trireme::parallel
