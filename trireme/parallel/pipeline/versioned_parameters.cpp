#include "trireme/parallel/pipeline/internal/versioned_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

std::vector<at::Tensor> values_of(const optim::NamedTensors& tensors) {
  std::vector<at::Tensor> values;
  // With separate version counters: an update must not invalidate graphs that have saved an older version.
  for (const auto& [name, tensor] : tensors) values.push_back(tensor.variable_data());
  return values;
}

}  // namespace

VersionedParameters::VersionedParameters(optim::NamedTensors leaves) : leaves_(std::move(leaves)) {
  for (const auto& [name, leaf] : leaves_) newest_.emplace_back(name, leaf.variable_data());
}

void VersionedParameters::restart() {
  if (!old_.empty()) throw InternalError("weights of a pipeline are still in use at its start");
  uses_.clear();
  released_.clear();
  shown_ = shown_ == version_ ? 0 : kNone;
  version_ = 0;
}

void VersionedParameters::show(const std::vector<at::Tensor>& values, int version) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < leaves_.size(); ++i) leaves_[i].second.set_data(values[i]);
  shown_ = version;
}

void VersionedParameters::show(int version) {
  if (version == shown_) return;
  if (version == version_) return show(values_of(newest_), version);
  const auto found = old_.find(version);
  if (found == old_.end()) {
    throw InternalError(
        text("version ", version, " of the weights is not there any more; the newest is ", version_));
  }
  show(found->second, version);
}

void VersionedParameters::release(int version) {
  const auto at = static_cast<std::size_t>(version);
  released_.resize(std::max(released_.size(), at + 1));
  ++released_[at];
  if (is_used(version)) return;
  if (const auto over = old_.find(version); over != old_.end()) {
    if (shown_ == version) shown_ = kNone;  // its storage is reused for the next version
    spare_.push_back(std::move(over->second));
    old_.erase(over);
  }
}

bool VersionedParameters::is_used(int version) const {
  const auto at = static_cast<std::size_t>(version);
  const int released = at < released_.size() ? released_[at] : 0;
  return at < uses_.size() && uses_[at] > released;
}

void VersionedParameters::begin_update(double scale) {
  const at::NoGradGuard no_grad;
  if (is_used(version_)) {
    std::vector<at::Tensor> before = values_of(newest_), storage;
    if (!spare_.empty()) {
      storage = std::move(spare_.back());
      spare_.pop_back();
    }
    for (std::size_t i = 0; i < newest_.size(); ++i) {
      at::Tensor next = i < storage.size() ? storage[i] : at::empty_like(before[i]);
      next.copy_(before[i]);
      newest_[i].second.set_data(next);
    }
    old_.emplace(version_, std::move(before));
  }
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor gradient = std::exchange(leaves_[i].second.mutable_grad(), at::Tensor());
    if (scale != 1 && gradient.defined()) gradient.mul_(scale);
    newest_[i].second.mutable_grad() = std::move(gradient);
  }
}

void VersionedParameters::end_update() {
  for (auto& [name, tensor] : newest_) tensor.mutable_grad().reset();
  // The storage that the leaves show may be the one that was just updated in place.
  if (shown_ == version_ && !old_.contains(version_)) shown_ = version_ + 1;
  ++version_;
}

}  // namespace trireme::parallel
