// What a trainer's memory is used for.
#include "trireme/model/activation_store.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

/// 1024 of f32, as CompressionOptions has it; vectors of so many elements are few.
constexpr std::int64_t kLeastEncodedBytes = 4096;

}  // namespace

/// For the ledger: what else is allocated is of a step.
void Trainer::name_memory() {
  for (const at::Tensor& parameter : model_->parameters())
    parallel::count_as(MemoryKind::kWeights, parameter);
  for (const at::Tensor& buffer : model_->buffers()) parallel::count_as(MemoryKind::kWeights, buffer);
  for (const auto& [name, tensor] : optimizer_->state()) parallel::count_as(MemoryKind::kOptimizer, tensor);
  if (outer_steps_) {
    for (const auto& [name, tensor] : outer_steps_->common_state())
      parallel::count_as(MemoryKind::kOptimizer, tensor);
  }
  if (!average_) return;
  for (const auto& [name, tensor] : average_->state()) parallel::count_as(MemoryKind::kOptimizer, tensor);
}

/// Replicas have one copy of the weights between them.
bool Trainer::has_common_weights() const {
  return plan_.is_sharded() && !plan_.offloads_parameters() && groups_.shards().has_common_memory(device_);
}

MemoryReport Trainer::memory() const {
  const WeightsMemory common = has_common_weights() ? WeightsMemory::kCommon : WeightsMemory::kOwn;
  return {.at_update = memory_at_update_,
          .at_peak = MemoryLedger::of_process().at_peak(),
          .formula = state_by_formula(plan_, bytes_of_parameters(common), common),
          .offloaded_bytes = (offload_ ? offload_->offloaded_bytes() : 0) +
                             (activations_ ? activations_->most_kept_bytes() : 0)};
}

std::vector<ParameterBytes> Trainer::bytes_of_parameters(WeightsMemory memory) const {
  const bool decodes = plan_.rounds_weights() && memory == WeightsMemory::kOwn;
  std::vector<ParameterBytes> all;
  for (const auto& [name, weight] : pipeline_.weights()) {
    ParameterBytes bytes{.exact = parameter_bytes_.at(name)};
    bytes.is_kept =
        bytes.exact / static_cast<std::int64_t>(sizeof(float)) < config_.parallel.persistent_below;
    if (plan_.is_sharded() && weight.scalar_type() == plan_.precision().autocast_to &&
        weight.scalar_type() != at::kFloat)
      bytes.working = bytes.exact / static_cast<std::int64_t>(sizeof(float) / weight.element_size());
    if (decodes && bytes.working == 0 && bytes.exact >= kLeastEncodedBytes) bytes.working = bytes.exact;
    all.push_back(bytes);
  }
  return all;
}

}  // namespace trireme::train
