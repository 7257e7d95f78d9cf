// What a trainer's memory is used for.
#include "trireme/parallel/counted_memory.h"
#include "trireme/train/trainer.h"

namespace trireme::train {

/// For the ledger: what else is allocated is of a step.
void Trainer::name_memory() {
  for (const at::Tensor& parameter : model_->parameters())
    parallel::count_as(MemoryKind::kWeights, parameter);
  for (const at::Tensor& buffer : model_->buffers()) parallel::count_as(MemoryKind::kWeights, buffer);
  for (const auto& [name, tensor] : optimizer_->state()) parallel::count_as(MemoryKind::kOptimizer, tensor);
  if (!average_) return;
  for (const auto& [name, tensor] : average_->state()) parallel::count_as(MemoryKind::kOptimizer, tensor);
}

MemoryReport Trainer::memory() const {
  std::int64_t bytes = 0;
  for (const auto& [name, of_parameter] : parameter_bytes_) bytes += of_parameter;
  const bool common = plan_.is_sharded() && groups_.copies->has_common_memory(device_);
  return {.at_update = memory_at_update_,
          .at_peak = MemoryLedger::of_process().at_peak(),
          .formula = state_by_formula(plan_, bytes, common)};
}

}  // namespace trireme::train
