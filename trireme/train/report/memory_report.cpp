#include "trireme/train/report/memory_report.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/base/text.h"
#include "trireme/optim/optimizer.h"

namespace trireme::train {
namespace {

/// Number of tensors of a parameter's size in the optimizer state.
std::int64_t moments_of(const optim::OptimizerOptions& options) {
  const at::Tensor matrix = at::zeros({64, 64});
  std::int64_t bytes = 0;
  for (const auto& [name, state] : optim::make_optimizer(options, {{"weight", matrix}})->state())
    bytes += static_cast<std::int64_t>(state.nbytes());
  return bytes / static_cast<std::int64_t>(matrix.nbytes());
}

/// Bytes between two uses. With a low-precision working copy, only the owner keeps the exact values.
std::int64_t weights_of(const ParallelPlan& plan, const ParameterBytes& parameter, WeightsMemory memory) {
  if (!plan.is_sharded()) return parameter.exact;
  const std::int64_t part = parameter.exact / plan.shard_ranks();
  const bool is_rounded = parameter.working > 0;
  const std::int64_t whole = is_rounded ? parameter.working : parameter.exact, own = is_rounded ? part : 0;
  if (memory == WeightsMemory::kCommon) return own + whole / plan.shard_ranks();
  const bool is_released = plan.zero() == parallel::ZeroStage::kParameters && !parameter.is_kept;
  if (is_released && plan.offloads_parameters()) return 0;
  return is_released ? part : own + whole;
}

/// The values that ranks exchange.
template <class Report>
auto uses_of(Report& report) {
  return std::array{&report.at_update, &report.at_peak, &report.formula, &report.device_at_update,
                    &report.device_at_peak};
}
constexpr std::size_t kNumValues = 5 * kNumMemoryKinds + 1;

std::int64_t peak_of(const MemoryReport& report) {
  return report.at_peak.total() + report.device_at_peak.total();
}

/// State in memory: all of it, or three parts if it is offloaded.
std::int64_t in_memory(const ParallelPlan& plan, std::int64_t state_bytes) {
  if (!plan.offloads_state()) return state_bytes;
  constexpr double kMib = 1024.0 * 1024.0;
  return std::min(state_bytes, static_cast<std::int64_t>(3 * plan.config().offload.part_mib * kMib));
}

}  // namespace

MemoryUse state_by_formula(const ParallelPlan& plan, const std::vector<ParameterBytes>& parameters,
                           WeightsMemory memory) {
  std::int64_t parameter_bytes = 0, weight_bytes = 0;
  for (const ParameterBytes& each : parameters) {
    parameter_bytes += each.exact;
    weight_bytes += weights_of(plan, each, memory);
  }
  const auto shared_from = [&](parallel::ZeroStage stage) {
    return plan.zero() >= stage ? parameter_bytes / plan.shard_ranks() : parameter_bytes;
  };
  const bool averages = plan.config().train.ema_decay > 0;
  MemoryUse use;
  use[MemoryKind::kWeights] = weight_bytes;
  const bool keeps_gradients =
      plan.exact() || (plan.config().parallel.keep_gradients && plan.num_microbatches() > 1);
  use[MemoryKind::kGradients] =
      keeps_gradients ? parameter_bytes : shared_from(parallel::ZeroStage::kGradients);
  const std::int64_t of_each = shared_from(parallel::ZeroStage::kOptimizer);
  use[MemoryKind::kOptimizer] =
      in_memory(plan, of_each * moments_of(plan.config().optimizer)) + (averages ? of_each : 0);
  return use;
}

MemoryReport largest(comm::Context& context, const MemoryReport& mine) {
  at::Tensor numbers = at::empty({static_cast<std::int64_t>(kNumValues)}, at::kLong);
  auto* next = numbers.data_ptr<std::int64_t>();
  for (const MemoryUse* use : uses_of(mine)) next = std::copy(use->bytes.begin(), use->bytes.end(), next);
  *next = mine.offloaded_bytes;
  at::Tensor all = at::empty({context.world_size() * numbers.numel()}, at::kLong);
  context.world().all_gather(all, numbers);
  MemoryReport result;
  for (int rank = 0; rank < context.world_size(); ++rank) {
    const std::int64_t* from = all.const_data_ptr<std::int64_t>() + rank * numbers.numel();
    MemoryReport found;
    found.rank = rank;
    for (MemoryUse* use : uses_of(found)) {
      std::copy_n(from, kNumMemoryKinds, use->bytes.begin());
      from += kNumMemoryKinds;
    }
    found.offloaded_bytes = *from;
    if (rank == 0 || peak_of(found) > peak_of(result)) result = found;
  }
  return result;
}

std::string describe(const MemoryUse& use) {
  std::string out;
  for (const MemoryKind kind : {MemoryKind::kWeights, MemoryKind::kGradients, MemoryKind::kOptimizer,
                                MemoryKind::kActivations, MemoryKind::kCommunication}) {
    if (use[kind] <= 0) continue;
    out +=
        text(out.empty() ? "" : ", ", name_of(kind), " ", human_bytes(static_cast<std::uint64_t>(use[kind])));
  }
  return out;
}

}  // namespace trireme::train
