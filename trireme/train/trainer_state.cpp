// What a trainer saves and restores.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/train/batch_ramp.h"
#include "trireme/train/internal/check.h"
#include "trireme/train/internal/offloading.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

/// A sum is not finite when an addend is not: only then is each looked at, since large numbers may overflow.
bool is_finite(const at::Tensor& tensor) {
  if (!tensor.is_floating_point()) return true;
  const at::NoGradGuard no_grad;
  return std::isfinite(tensor.sum().item<double>()) || at::isfinite(tensor).all().item<bool>();
}

/// The same of one that lives elsewhere, piece by piece.
bool is_finite(const at::Tensor& tensor, const optim::Offload* offload) {
  if (offload == nullptr || !offload->has(tensor)) return is_finite(tensor);
  const checkpoint::Box whole = checkpoint::whole_box(tensor.sizes());
  return std::ranges::all_of(
      checkpoint::pieces_of(whole, tensor.element_size(), checkpoint::kPieceBytes),
      [&](const checkpoint::Box& piece) {
        return is_finite(offload->fetch(checkpoint::view_of(tensor.detach(), whole, piece)));
      });
}

}  // namespace

std::string Trainer::not_finite() {
  for (const auto& [name, parameter] : parameters_) {
    if (!is_finite(parameter, offload_.get())) return name;
  }
  std::map<std::string, at::Tensor> others = optimizer_->state();
  if (average_) others.merge(average_->state());
  for (const auto& [name, tensor] : others) {
    if (!is_finite(tensor, offload_.get())) return name;
  }
  return "";
}

checkpoint::TensorMap Trainer::model_state() const {
  checkpoint::TensorMap state;
  for (const auto& [name, parameter] : parameters_) state.emplace(name, parameter.detach());
  for (const auto& [name, buffer] : pipeline_.buffers()) state.emplace(name, buffer.detach());
  if (!outer_steps_) return state;
  for (const auto& [name, mean] : outer_steps_->model()) state.insert_or_assign(name, mean);
  return state;
}

optim::NamedTensors Trainer::own_state() {
  optim::NamedTensors state = outer_steps_ ? outer_steps_->own_state() : optim::NamedTensors();
  for (const auto& [name, tensor] : optimizer_->state()) state.emplace_back("optimizer/" + name, tensor);
  return state;
}

std::map<std::string, at::Tensor> Trainer::state() {
  std::map<std::string, at::Tensor> state = optimizer_->state();
  const auto add = [&](const std::string& prefix, const std::map<std::string, at::Tensor>& part) {
    for (const auto& [name, tensor] : part) state.emplace(prefix + name, tensor);
  };
  add("lr/", learning_rate_->state());
  for (const auto& [name, chosen] : choices_)
    if (chosen.numel() > 0) state.emplace(name, chosen);
  if (noise_) add(kNoise, noise_->state());
  if (scaler_) add("scaler/", scaler_->state());
  if (average_) add("ema/", average_->state());
  return state;
}

double Trainer::rate_of(const RunConfig& config, std::int64_t step) const {
  const at::NoGradGuard no_grad;
  const Calendar calendar(config, batch_layout(config, data_.train->size()));
  const auto rate = make_learning_rate(config, schedule_steps(config, calendar.total_steps()));
  const std::map<std::string, at::Tensor> learnt = learning_rate_->state();
  for (auto& [name, tensor] : rate->state()) {
    if (const auto found = learnt.find(name); found != learnt.end()) at::Tensor(tensor).copy_(found->second);
  }
  return rate_for_batch(config, rate->at(step - 1), calendar.batch(step - 1).full);
}

void Trainer::make_room_for_choice(const std::string& name, std::int64_t bytes) {
  choices_.at(name) = at::zeros({bytes}, at::kByte);
}

std::shared_ptr<const checkpoint::Elsewhere> Trainer::elsewhere() const { return elsewhere_of(offload_); }

}  // namespace trireme::train
