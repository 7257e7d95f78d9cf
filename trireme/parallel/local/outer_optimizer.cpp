#include "trireme/parallel/local/outer_optimizer.h"

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/min_max_cuts.h"
#include "trireme/base/text.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kNever = 0;  // steps count from 1

/// A copy without gradients, in f32 or wider: outer steps add small values.
at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach().to(at::toOpMathType(tensor.scalar_type()), /*non_blocking=*/false, /*copy=*/true);
}

optim::NamedTensors learning(const optim::NamedTensors& parameters) {
  optim::NamedTensors result;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.requires_grad()) result.emplace_back(name, parameter);
  }
  return result;
}

std::int64_t numel_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t numel = 0;
  for (const at::Tensor& tensor : tensors) numel += tensor.numel();
  return numel;
}

void check(const OuterOptions& options, std::size_t num_parameters) {
  require(options.every >= 1, "a round of outer steps has at least one step, not ", options.every);
  require(options.from >= 0, "there cannot be ", options.from, " steps before the first round");
  require(options.delay >= 0 && options.delay < options.every, "an outer step is delayed by less than the ",
          options.every, " steps of a round, not by ", options.delay);
  require(options.mixing >= 0 && options.mixing <= 1, "the share that a site keeps is in [0, 1], not ",
          options.mixing);
  require(options.fragments >= 1 && static_cast<std::size_t>(options.fragments) <= num_parameters,
          "this rank has ", num_parameters, " parameters that learn, which cannot be cut into ",
          options.fragments, " fragments");
}

}  // namespace

/// Consecutive parameters that are sent together. The last fragment also has the buffers.
struct OuterOptimizer::Fragment {
  std::vector<at::Tensor> own, outer;
  std::size_t num_parameters = 0;  ///< before the buffers
  at::Tensor flat;                 ///< outer values minus own ones: this site's, then the mean
  std::vector<at::Tensor> parts;   ///< views of `flat`
  at::Tensor sent;                 ///< the step of the last send; kNever: nothing is in transfer
  comm::Pending pending;
  bool is_settled = true;

  std::int64_t& sent_step() const { return *sent.data_ptr<std::int64_t>(); }
};

OuterOptimizer::OuterOptimizer(const OuterOptions& options, SiteGroups groups,
                               const optim::NamedTensors& parameters, const optim::NamedTensors& buffers)
    : options_(options), groups_(std::move(groups)), own_(learning(parameters)) {
  check(options_, own_.size());
  std::vector<double> sizes;
  for (const auto& [name, parameter] : own_) sizes.push_back(static_cast<double>(parameter.numel()));
  for (const auto& [name, buffer] : buffers) {
    if (buffer.is_floating_point()) own_.emplace_back(name, buffer);
  }
  for (const auto& [name, tensor] : own_) {
    outer_.emplace_back(name, copy_of(tensor));
    mean_.emplace_back(name, tensor.detach().clone());
  }
  optimizer_ = optim::make_optimizer(
      options_.optimizer, {outer_.begin(), outer_.begin() + static_cast<std::ptrdiff_t>(sizes.size())});
  const int ranks = groups_.site ? groups_.site->size() : 1;
  std::size_t begin = 0;
  for (const std::size_t cut : min_max_cuts(sizes, static_cast<std::size_t>(options_.fragments))) {
    const std::size_t end = cut == sizes.size() ? own_.size() : cut;
    auto fragment = std::make_unique<Fragment>();
    for (std::size_t i = begin; i < end; ++i) {
      fragment->own.push_back(own_[i].second);
      fragment->outer.push_back(outer_[i].second);
    }
    fragment->num_parameters = cut - begin;
    const std::int64_t numel = numel_of(fragment->own);
    const at::TensorOptions kind = outer_[begin].second.options();
    fragment->flat = groups_.sites.allocate((numel + ranks - 1) / ranks * ranks, kind);
    std::int64_t offset = 0;
    for (const at::Tensor& outer : fragment->outer) {
      fragment->parts.push_back(fragment->flat.narrow(0, offset, outer.numel()).view(outer.sizes()));
      offset += outer.numel();
    }
    fragment->sent = at::zeros({1}, at::kLong);
    fragments_.push_back(std::move(fragment));
    begin = end;
  }
}

OuterOptimizer::~OuterOptimizer() = default;

at::Tensor OuterOptimizer::share_of(const at::Tensor& flat) const {
  if (!groups_.site) return flat;
  const std::int64_t share = flat.numel() / groups_.site->size();
  return flat.narrow(0, groups_.site->rank() * share, share);
}

comm::Pending OuterOptimizer::start_sum(const at::Tensor& flat) {
  at::Tensor share = share_of(flat);
  sent_bytes_ += 2 * static_cast<std::int64_t>(share.nbytes()) * (num_sites() - 1) / num_sites();
  return groups_.sites.all_reduce_async(share);
}

void OuterOptimizer::gather(at::Tensor& flat) {
  if (groups_.site) groups_.site->all_gather(flat, share_of(flat).clone());
}

void OuterOptimizer::sum(at::Tensor& flat) {
  const double begin_s = now_s();
  start_sum(flat).wait();
  waited_s_ += now_s() - begin_s;
  gather(flat);
}

void OuterOptimizer::add_gradients() {
  const at::NoGradGuard no_grad;
  for (const auto& fragment : fragments_) {
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < fragment->num_parameters; ++i) {
      at::Tensor& gradient = fragment->own[i].mutable_grad();
      if (!gradient.defined()) gradient = at::zeros(fragment->own[i].sizes(), fragment->own[i].options());
      gradients.push_back(gradient);
    }
    const std::vector<at::Tensor> parts(
        fragment->parts.begin(), fragment->parts.begin() + static_cast<std::ptrdiff_t>(gradients.size()));
    fragment->flat.zero_();
    at::_foreach_copy_(parts, gradients);
    sum(fragment->flat);
    at::_foreach_copy_(gradients, parts);
  }
}

bool OuterOptimizer::sends(int fragment, std::int64_t step) const {
  const std::int64_t begin = options_.from + fragment * options_.every / options_.fragments;
  return step > options_.from && step >= begin && (step - begin) % options_.every == 0;
}

void OuterOptimizer::after_step(std::int64_t step) {
  is_mean_known_ = agree_ = false;
  int num_whole = 0;
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    Fragment& fragment = *fragments_[f];
    // Before the next send. This also applies an outer step that is overdue because the delay was shortened.
    if (fragment.sent_step() != kNever && fragment.sent_step() + options_.delay <= step) this->step(fragment);
    if (!sends(static_cast<int>(f), step)) continue;
    send(fragment, step);
    if (options_.delay > 0) continue;
    this->step(fragment);
    ++num_whole;
  }
  const bool has_buffers = fragments_.back()->own.size() > fragments_.back()->num_parameters;
  agree_ = num_whole == options_.fragments || (averages_gradients(step) && !has_buffers);
}

void OuterOptimizer::send(Fragment& fragment, std::int64_t step) {
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(fragment.parts, fragment.outer);
  for (std::size_t i = 0; i < fragment.parts.size(); ++i) fragment.parts[i].sub_(fragment.own[i]);
  fragment.pending = start_sum(fragment.flat);
  fragment.is_settled = false;
  fragment.sent_step() = step;
}

void OuterOptimizer::settle(Fragment& fragment) {
  if (fragment.is_settled) return;
  const double begin_s = now_s();
  std::exchange(fragment.pending, {}).wait();
  waited_s_ += now_s() - begin_s;
  gather(fragment.flat);
  fragment.flat.div_(num_sites());
  fragment.is_settled = true;
}

void OuterOptimizer::settle() {
  for (const auto& fragment : fragments_) settle(*fragment);
}

void OuterOptimizer::step(Fragment& fragment) {
  settle(fragment);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < fragment.parts.size(); ++i) {
    if (i < fragment.num_parameters)
      fragment.outer[i].mutable_grad() = fragment.parts[i].to(fragment.outer[i].scalar_type());
    else
      fragment.outer[i].sub_(fragment.parts[i]);
  }
  optimizer_->step();
  for (const at::Tensor& outer : fragment.outer) outer.mutable_grad().reset();
  for (std::size_t i = 0; i < fragment.own.size(); ++i) {
    if (options_.delay == 0)
      fragment.own[i].copy_(fragment.outer[i]);
    else
      fragment.own[i].lerp_(fragment.outer[i].to(fragment.own[i].scalar_type()), 1 - options_.mixing);
  }
  fragment.sent_step() = kNever;
}

void OuterOptimizer::synchronize() {
  if (is_mean_known_) return;
  is_mean_known_ = true;
  const at::NoGradGuard no_grad;
  std::size_t next = 0;
  for (const auto& fragment : fragments_) {
    std::vector<at::Tensor> means;
    for (const at::Tensor& own : fragment->own) {
      means.push_back(mean_[next++].second);
      if (agree_) means.back().copy_(own);
    }
    if (agree_) continue;
    at::Tensor flat = groups_.sites.allocate(fragment->flat.numel(), fragment->flat.options());
    std::int64_t offset = 0;
    std::vector<at::Tensor> parts;
    for (const at::Tensor& own : fragment->own) {
      parts.push_back(flat.narrow(0, offset, own.numel()).view(own.sizes()));
      offset += own.numel();
    }
    at::_foreach_copy_(parts, fragment->own);
    sum(flat);
    flat.div_(num_sites());
    at::_foreach_copy_(means, parts);
  }
}

void OuterOptimizer::exchange() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    at::Tensor own = own_[i].second.detach();
    const at::Tensor values = own.clone();
    own.copy_(mean_[i].second);
    mean_[i].second.copy_(values);
  }
}

optim::NamedTensors OuterOptimizer::common_state() const {
  optim::NamedTensors state;
  for (const auto& [name, outer] : outer_) state.emplace_back("value/" + name, outer);
  for (const auto& [name, tensor] : optimizer_->state()) state.emplace_back(name, tensor);
  if (options_.delay == 0) return state;
  std::size_t next = 0;
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    state.emplace_back(text("sent/", f), fragments_[f]->sent);
    for (const at::Tensor& part : fragments_[f]->parts)
      state.emplace_back("arrived/" + own_[next++].first, part);
  }
  return state;
}

void OuterOptimizer::restored() {
  is_mean_known_ = agree_ = false;
  for (const auto& fragment : fragments_) fragment->is_settled = true;
}

void OuterOptimizer::begin_with_model() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    own_[i].second.detach().copy_(mean_[i].second);
    outer_[i].second.copy_(mean_[i].second);
  }
  for (const auto& fragment : fragments_) fragment->sent_step() = kNever;
  restored();
}

}  // namespace trireme::parallel
