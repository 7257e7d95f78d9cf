#include "trireme/ps/internal/dense_chunk.h"

#include <algorithm>
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
  return std::vector<float>(rule.state_elements(num_values), rule.first_state(spec.optimizer));
}

}  // namespace

DenseChunk::DenseChunk(const TableSpec& spec, std::uint64_t chunk)
    : values_(first_values(spec, chunk)), state_(first_state(spec, spec.elements_of(chunk))) {}

void DenseChunk::update(const TableSpec& spec, std::span<const float> gradient, double lr, Version version) {
  changed_at_ = version;
  ++num_updates_;
  OptimizerSpec optimizer = spec.optimizer;
  if (lr != kTableRate) optimizer.lr = lr;
  optimizer_rule(optimizer.name)
      .update(
          optimizer,
          {.values = values_.change(), .gradient = gradient, .state = state_.change(), .step = num_updates_});
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
