#include "trireme/parallel/pipeline/internal/exact_weights.h"

#include "trireme/parallel/data/internal/replicas.h"

namespace trireme::parallel {

ExactWeights::ExactWeights(std::optional<comm::Group> data, const Replica& replica,
                           const DataParallelOptions& options)
    : StageWeights(replica.parameters), sum_(data, replica.parameters) {
  if (!data || data->size() == 1) return;
  check_replicas(*data, replica, options);
  broadcast_tensors(*data, tensors_of(replica.parameters), /*root=*/0);
  broadcast_tensors(*data, tensors_of(replica.buffers), /*root=*/0);
}

}  // namespace trireme::parallel
