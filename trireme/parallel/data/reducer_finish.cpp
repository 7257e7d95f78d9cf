// The part of the reducer that runs when backward ends: unused parameters, waiting, buffers, and the
// rebuilding of the buckets, once after each new layout.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/reducer.h"
#include "trireme/parallel/data/internal/unreached.h"

namespace trireme::parallel {

/// Fills the slots of unused parameters and starts the remaining buckets.
void DistributedDataParallel::Reducer::complete_buckets(Role role) {
  const at::NoGradGuard no_grad;
  try {
    fill_missing_gradients(role);
    start_ready_buckets();
    for (Coalesced& buffers : buffers_) buffers.start(group, root);
    start_comparison();
  } catch (...) {
    break_off_and_throw(std::current_exception());
  }
}

void DistributedDataParallel::Reducer::start_reduction() {
  if (started_) return;
  if (!backward_over_) return join_and_keep();
  complete_buckets(Role::kOwn);
  started_ = Role::kOwn;
}

void DistributedDataParallel::Reducer::finish_reduction() {
  if (!backward_over_) return;
  start_reduction();
  if (*started_ == Role::kOwn) return finish_pass(Role::kOwn);
  finish_pass(Role::kShadow, [] {});
}

void DistributedDataParallel::Reducer::finish_reduction(const optim::NamedTensors& asked) {
  group.check();  // after a failure the gradients are missing for every caller
  if (!backward_over_) return;
  start_reduction();
  // A rank without its own pass gets gradients when the others' pass ends.
  const bool shows_at_its_end = !statistics.rebuilt ||
                                options.unused_parameters != UnusedParameters::kError ||
                                *started_ == Role::kShadow;
  if (shows_at_its_end) return finish_reduction();
  bool all_have_all = true;
  try {
    const double began_s = now_s();
    finish_buffers();
    // The flag of the last bucket tells whether a rank lacks a gradient.
    if (!asked.empty()) {
      wait_for(buckets_.size() - 1);
      all_have_all = buckets_.back().flag.item<double>() == 0;
    }
    for (const auto& [name, tensor] : asked) {
      const auto found = numbers_.find(tensor.unsafeGetTensorImpl());
      if (all_have_all && found != numbers_.end() && parameters_[found->second].learns)
        wait_for(parameters_[found->second].bucket);
    }
    statistics.waited_s += now_s() - began_s;
  } catch (...) {
    break_off_and_throw(std::current_exception());
  }
  const bool is_over = std::ranges::none_of(buckets_, [](const Bucket& each) { return bool(each.wait); });
  if (is_over || !all_have_all) finish_reduction();
}

void DistributedDataParallel::Reducer::require_finished(const char* caller) const {
  require(!backward_over_, caller, " was called before finish_reduction() had ended the last backward pass");
}

void DistributedDataParallel::Reducer::finish_pass(Role role, const std::function<void()>& follow) {
  const at::NoGradGuard no_grad;
  const bool was_comparing = std::exchange(comparing_, false);
  std::string unreached;
  try {
    const double began_s = now_s();
    const Usage usage = exchange_used(role);
    for (std::size_t number = 0; number < buckets_.size(); ++number) wait_for(number);
    finish_buffers();
    statistics.waited_s += now_s() - began_s;
    if (options.unused_parameters == UnusedParameters::kError || usage_known_)
      unreached = unreached_of_all_ranks();
    if (unreached.empty()) {
      settle(usage.used, role, follow != nullptr);
      ++statistics.reductions;
      if (learns_usage() && usage.of_all_ranks) learn_usage(usage.used);
      if (!statistics.rebuilt && !learns_usage()) rebuild_buckets();
    }
    note_reduced();
  } catch (...) {
    break_off_and_throw(std::current_exception());
  }
  forget_pass();
  if (was_comparing) replica_check_->finish(text("reduction ", statistics.reductions));
  if (!unreached.empty()) reject_unreached(unreached, usage_known_ ? kUnreachedLater : kUnreachedAdvice);
  if (follow) follow();
}

/// Starts a pass without local gradients, up to the waiting.
void DistributedDataParallel::Reducer::start_join() {
  try {
    begin_pass();
  } catch (...) {
    break_off_and_throw(std::current_exception());
  }
  backward_over_ = true;
  complete_buckets(Role::kShadow);
  started_ = Role::kShadow;
}

void DistributedDataParallel::Reducer::join_reduction(const std::function<void()>& follow) {
  check_module();
  announced_ = true;
  start_join();
  finish_pass(Role::kShadow, follow);
}

void DistributedDataParallel::Reducer::join_and_keep() {
  require_finished("reduce_without_backward()");
  reject_outside_of_join();
  check_module();
  announce_pass();
  start_join();
  if (options.end == ReductionEnd::kWithBackward) finish_reduction();
}

/// Fills the bucket for a parameter without a gradient in this pass: with its current .grad, or with zeros.
void DistributedDataParallel::Reducer::fill_missing_gradient(std::size_t number) {
  Parameter& parameter = parameters_[number];
  recognise_view(parameter);
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined()) {
    make_room(number);
    parameter.view.zero_();
    unreached_.push_back({number, {}});
  } else if (gradient.is_same(parameter.view)) {
    unreached_.push_back({number, gradient.clone()});
    // The current values have been summed over the ranks already.
    if (options.scale == ReduceScale::kSum && parameter.reduced) parameter.view.zero_();
  } else {
    unreached_.push_back({number, gradient});
    make_room(number);
    parameter.view.copy_(gradient);
  }
  mark_ready(number);
}

/// Zeroing a module replaces the gradient by another tensor over the same memory (`grad = grad.detach()`).
void DistributedDataParallel::Reducer::recognise_view(Parameter& parameter) const {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const at::Tensor& view = parameter.view;
  if (gradient.defined() && gradient.layout() == at::kStrided && gradient.numel() > 0 &&
      gradient.const_data_ptr() == view.const_data_ptr() && gradient.strides() == view.strides())
    gradient = view;
}

/// Whether the gradient accumulated under no_sync still exists: neither dropped nor zeroed in place. Only
/// later writes are checked, because backward may produce zeros as a gradient.
bool DistributedDataParallel::Reducer::keeps_gradient(const Parameter& parameter) const {
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!parameter.used || !gradient.defined()) return false;
  const bool is_untouched = gradient.is_same(parameter.view) && gradient._version() == parameter.used_version;
  return is_untouched || gradient.count_nonzero().item<std::int64_t>() > 0;
}

void DistributedDataParallel::Reducer::fill_missing_gradients(Role role) {
  const bool reports =
      role == Role::kOwn && (options.unused_parameters == UnusedParameters::kError || usage_known_);
  for (const Bucket& bucket : buckets_) {
    for (const std::size_t number : bucket.parameters) {
      Parameter& parameter = parameters_[number];
      if (parameter.fired) continue;
      recognise_view(parameter);
      parameter.used = keeps_gradient(parameter);
      if (parameter.used) {  // accumulated under no_sync
        adopt(number);
        mark_ready(number);
        continue;
      }
      fill_missing_gradient(number);
      // The flag is summed over the ranks: all of them detect it, and none waits for gradients that never
      // come.
      if (reports) buckets_.back().flag.fill_(1);
    }
  }
}

DistributedDataParallel::Reducer::Usage DistributedDataParallel::Reducer::exchange_used(Role role) {
  const bool asks = options.unused_parameters == UnusedParameters::kFind || learns_usage();
  if (!asks) return {.used = std::vector<bool>(parameters_.size(), true)};
  if (!used_flags_.defined())
    used_flags_ = group.allocate(static_cast<std::int64_t>(parameters_.size()) + 1, at::kInt);
  auto* flags = used_flags_.mutable_data_ptr<int>();
  for (std::size_t i = 0; i < parameters_.size(); ++i) flags[i] = parameters_[i].used ? 1 : 0;
  int& without_batch = flags[parameters_.size()];
  without_batch = role == Role::kShadow ? 1 : 0;
  group.all_reduce(used_flags_, comm::ReduceOp::kMax);
  return {.used = std::vector<bool>(flags, flags + parameters_.size()), .of_all_ranks = without_batch == 0};
}

void DistributedDataParallel::Reducer::wait_for(std::size_t bucket) {
  const auto wait = std::exchange(buckets_[bucket].wait, nullptr);
  if (!wait) return;
  wait();
  if (trace_ != nullptr && trace_->recording()) trace_bucket(bucket);
}

/// Once per pass, because the next forward changes buffers again.
void DistributedDataParallel::Reducer::finish_buffers() {
  if (std::exchange(buffers_over_, true)) return;
  for (Coalesced& buffers : buffers_) buffers.finish(group);
}

/// From the start of the bucket's reduction until its result was taken.
void DistributedDataParallel::Reducer::trace_bucket(std::size_t number) const {
  telemetry::TraceSpan span{
      .begin_ns = buckets_[number].started_ns, .end_ns = now_ns(), .category = "bucket", .name = "bucket"};
  span.arguments = {{{"bucket", static_cast<std::int64_t>(number)},
                     {"bytes", static_cast<std::int64_t>(buckets_[number].flat.nbytes())},
                     {"parameters", static_cast<std::int64_t>(buckets_[number].parameters.size())}}};
  trace_->add(span);
}

/// The parameters that a pass did not reach, by rank and equal on all ranks; empty if there are none.
std::string DistributedDataParallel::Reducer::unreached_of_all_ranks() {
  at::Tensor& flag = buckets_.back().flag;
  if (flag.item<double>() == 0) return {};
  flag.zero_();
  std::ranges::sort(unreached_, {}, &Unreached::number);  // the model's order
  std::vector<std::string> mine;
  for (const Unreached& unreached : unreached_) {
    if (std::ranges::find(silent_, unreached.number) == silent_.end())
      mine.push_back(parameters_[unreached.number].name);
  }
  return names_by_rank(group, mine);
}

/// Parameters that no rank used keep their earlier gradient. Those that another rank used get the reduced
/// one.
void DistributedDataParallel::Reducer::settle(const std::vector<bool>& used, Role role, bool follows) {
  const bool keeps_all = role == Role::kShadow && !follows;
  for (const auto& [number, before] : unreached_) {
    Parameter& parameter = parameters_[number];
    if (used[number] && !keeps_all) {
      parameter.tensor.mutable_grad() = parameter.view;
    } else if (parameter.tensor.grad().is_same(parameter.view)) {
      parameter.view.copy_(before);
    }
  }
  for (Parameter& parameter : parameters_) {
    // The others' gradients now include a shadow's gradient from no_sync.
    if (keeps_all && parameter.used) parameter.tensor.mutable_grad().reset();
  }
}

void DistributedDataParallel::Reducer::note_reduced() {
  for (Parameter& parameter : parameters_) {
    parameter.used = false;
    if (!parameter.view.defined()) continue;
    parameter.reduced = true;
    parameter.reduced_version = static_cast<std::uint32_t>(parameter.view._version());
  }
}

/// Runs before any gradient of this pass is available to callers, so that no parameter has been updated yet.
/// Buffers are broadcast from the root after each reduction, and are not compared.
void DistributedDataParallel::Reducer::start_comparison() {
  const auto every = static_cast<std::uint64_t>(options.check_replicas_every);
  if (!compares || every == 0 || (statistics.reductions + 1) % every != 0) return;
  if (!replica_check_) {
    replica_check_.emplace(group, replica.parameters,
                           "; DataParallelOptions::check_replicas_every = 0 compares nothing");
  }
  replica_check_->start();
  comparing_ = true;
}

void DistributedDataParallel::Reducer::forget_pass() {
  running_ = announced_ = backward_over_ = comparing_ = false;
  started_.reset();
  graph_tasks_.clear();
  unreached_.clear();
  if (!statistics.rebuilt) ready_order_.clear();
  if (made_in_place_) made_in_place_->begin_step();
}

bool DistributedDataParallel::Reducer::learns_usage() const {
  return options.unused_parameters == UnusedParameters::kStatic && !usage_known_;
}

void DistributedDataParallel::Reducer::learn_usage(const std::vector<bool>& used) {
  usage_known_ = true;
  for (const auto& [number, before] : unreached_) {
    if (used[number]) silent_.push_back(number);
  }
  // Parameters that no rank uses leave their buckets permanently.
  const auto without_unused = [&](std::vector<std::size_t>& order) {
    std::erase_if(order, [&](std::size_t number) { return !used[number]; });
  };
  without_unused(ready_order_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (used[i] || !parameters_[i].learns) continue;
    leave_bucket(parameters_[i]);
  }
}

/// All ranks order their buckets by the order in which the root got the gradients.
void DistributedDataParallel::Reducer::rebuild_buckets() {
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const bool listed = std::ranges::find(ready_order_, i) != ready_order_.end();
    if (!listed && parameters_[i].view.defined()) ready_order_.push_back(i);
  }
  at::Tensor order = at::empty({static_cast<std::int64_t>(ready_order_.size())}, at::kLong);
  auto* numbers = order.mutable_data_ptr<std::int64_t>();
  std::ranges::copy(ready_order_, numbers);
  group.broadcast(order, root);
  ready_order_.assign(numbers, numbers + order.numel());

  build_buckets(ready_order_);
  statistics.rebuilt = true;
}

void DistributedDataParallel::Reducer::broadcast_state(int from) {
  broadcast_tensors(group, tensors_of(replica.parameters), from);
  broadcast_tensors(group, tensors_of(replica.buffers), from);
}

void DistributedDataParallel::Reducer::zero_grad() {
  check_module();
  for (const Parameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

}  // namespace trireme::parallel
