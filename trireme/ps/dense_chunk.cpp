#include "trireme/ps/internal/dense_chunk.h"

#include <algorithm>
#include <cstring>

namespace trireme::ps {

DenseChunk::DenseChunk(const TableSpec& spec, std::uint64_t chunk) {
  const std::uint32_t count = spec.elements_of(chunk);
  values_ = std::make_shared<std::vector<float>>(count);
  for (std::uint32_t i = 0; i < count; ++i) (*values_)[i] = initial_value(spec, chunk, i);
  const OptimizerRule& rule = optimizer_rule(spec.optimizer.name);
  state_ = std::make_shared<std::vector<float>>(rule.state_elements(count), rule.first_state(spec.optimizer));
}

void DenseChunk::unshare(Floats& floats) {
  if (floats.use_count() > 1) floats = std::make_shared<std::vector<float>>(*floats);
}

void DenseChunk::update(const TableSpec& spec, std::span<const float> gradient, double lr, Version version) {
  unshare(values_);
  unshare(state_);
  changed_at_ = version;
  ++num_updates_;
  OptimizerSpec optimizer = spec.optimizer;
  if (lr != kTableRate) optimizer.lr = lr;
  optimizer_rule(optimizer.name)
      .update(optimizer, {.values = *values_, .gradient = gradient, .state = *state_, .step = num_updates_});
}

void DenseChunk::assign(const TableSpec& spec, std::span<const float> values, Version version) {
  values_ = std::make_shared<std::vector<float>>(values.begin(), values.end());
  const float first = optimizer_rule(spec.optimizer.name).first_state(spec.optimizer);
  state_ = std::make_shared<std::vector<float>>(state_->size(), first);
  num_updates_ = 0;
  changed_at_ = version;
}

wire::Buffer DenseChunk::share() const { return wire::Buffer(values_, std::as_bytes(std::span(*values_))); }

std::vector<std::byte> DenseChunk::flat() const {
  std::vector<std::byte> bytes((values_->size() + state_->size()) * sizeof(float));
  std::memcpy(bytes.data(), values_->data(), values_->size() * sizeof(float));
  if (!state_->empty())
    std::memcpy(bytes.data() + values_->size() * sizeof(float), state_->data(),
                state_->size() * sizeof(float));
  return bytes;
}

bool DenseChunk::restore(std::span<const std::byte> bytes, Version changed_at, std::uint64_t num_updates) {
  if (bytes.size() != (values_->size() + state_->size()) * sizeof(float)) return false;
  const std::size_t split = values_->size() * sizeof(float);
  std::memcpy(values_->data(), bytes.data(), split);
  if (!state_->empty()) std::memcpy(state_->data(), bytes.data() + split, bytes.size() - split);
  changed_at_ = changed_at;
  num_updates_ = num_updates;
  return true;
}

}  // namespace trireme::ps
