#include <memory>
#include <numeric>
#include <vector>

#include "trireme/parallel/data/internal/batch_norm_conversion.h"
#include "trireme/parallel/data/sync_batch_norm.h"

namespace trireme::parallel {

std::int64_t convert_sync_batchnorm(torch::nn::Module& module, const comm::Group& group) {
  BatchNormConversion<SyncBatchNormImpl> conversion(
      module, {.function = "convert_sync_batchnorm", .layer = "trireme::SyncBatchNorm"});
  return conversion.run(
      [&](const torch::nn::BatchNormOptions& options, const BatchNormTensors& tensors) {
        return std::make_shared<SyncBatchNormImpl>(options, group, tensors);
      },
      [&](SyncBatchNormImpl& layer) { layer.set_group(group); });
}

std::int64_t convert_sync_batchnorm(torch::nn::Module& module, comm::Context& context) {
  std::vector<int> ranks(static_cast<std::size_t>(context.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = context.new_group(ranks, context.free_group_name("sync_batch_norm"));
  return convert_sync_batchnorm(module, *group);
}

}  // namespace trireme::parallel
