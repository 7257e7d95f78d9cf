#include "trireme/ps/internal/dense_chunk.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace trireme::ps {
namespace {

std::vector<float> first_values(const TableSpec& spec, std::uint64_t chunk) {
  std::vector<float> values(spec.elements_of(chunk));
  for (std::uint32_t i = 0; i < values.size(); ++i) values[i] = initial_value(spec, chunk, i);
  return values;
}

std::vector<float> first_state(const TableSpec& spec, std::size_t num_values) {
  const OptimizerRule& rule = optimizer_rule(spec.optimizer.name);
  std::vector<float> state(rule.state_elements(num_values), rule.first_state(spec.optimizer));
  state.resize(state_elements(spec, num_values));  // mean squares of the delay compensation start at 0
  return state;
}

/// DelaySpec's formula; `mean_square` is empty without adaptation.
std::vector<float> compensated(const DelaySpec& delay, std::span<const float> gradient,
                               std::span<const float> base, std::span<const float> values,
                               std::span<float> mean_square) {
  const auto lambda = static_cast<float>(delay.lambda), decay = static_cast<float>(delay.decay);
  const auto eps = static_cast<float>(delay.eps);
  std::vector<float> sum(gradient.begin(), gradient.end());
  for (std::size_t i = 0; i < mean_square.size(); ++i)
    mean_square[i] = decay * mean_square[i] + (1 - decay) * gradient[i] * gradient[i];
  if (base.empty()) return sum;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float factor = mean_square.empty() ? lambda : lambda / std::sqrt(mean_square[i] + eps);
    sum[i] += factor * gradient[i] * gradient[i] * (values[i] - base[i]);
  }
  return sum;
}

}  // namespace

DenseChunk::DenseChunk(const TableSpec& spec, std::uint64_t chunk)
    : values_(first_values(spec, chunk)), state_(first_state(spec, spec.elements_of(chunk))) {}

void DenseChunk::update(const TableSpec& spec, std::span<const float> gradient, std::span<const float> base,
                        double lr, Version version) {
  const std::size_t of_rule = optimizer_rule(spec.optimizer.name).state_elements(values().size());
  std::vector<float> sum;
  if (spec.delay.lambda > 0) {
    const std::span<float> mean_square =
        spec.delay.is_adaptive ? state_.change().subspan(of_rule) : std::span<float>();
    sum = compensated(spec.delay, gradient, base, values(), mean_square);
    gradient = sum;
  }
  changed_at_ = version;
  ++num_updates_;
  OptimizerSpec optimizer = with_defaults(spec.optimizer);
  if (lr != kTableRate) optimizer.lr = lr;
  optimizer_rule(optimizer.name)
      .update(optimizer, {.values = values_.change(),
                          .gradient = gradient,
                          .state = state_.change().first(of_rule),
                          .step = num_updates_});
}

void DenseChunk::assign(const TableSpec& spec, std::span<const float> values, Version version) {
  values_ = SharedFloats(std::vector<float>(values.begin(), values.end()));
  state_ = SharedFloats(first_state(spec, values.size()));
  num_updates_ = 0;
  changed_at_ = version;
}

std::vector<std::byte> DenseChunk::flat() const {
  std::vector<std::byte> bytes(values().size_bytes() + state().size_bytes());
  std::memcpy(bytes.data(), values().data(), values().size_bytes());
  if (!state().empty())
    std::memcpy(bytes.data() + values().size_bytes(), state().data(), state().size_bytes());
  return bytes;
}

bool DenseChunk::restore(std::span<const std::byte> bytes, Version changed_at, std::uint64_t num_updates) {
  if (bytes.size() != values().size_bytes() + state().size_bytes()) return false;
  const std::size_t split = values().size_bytes();
  std::memcpy(values_.change().data(), bytes.data(), split);
  if (!state().empty()) std::memcpy(state_.change().data(), bytes.data() + split, bytes.size() - split);
  changed_at_ = changed_at;
  num_updates_ = num_updates;
  return true;
}

}  // namespace trireme::ps
