#include "trireme/parallel/pipeline/internal/replicated_weights.h"

namespace trireme::parallel {
namespace {

DataParallelOptions on_request(DataParallelOptions options) {
  if (options.end == ReductionEnd::kWithBackward) options.end = ReductionEnd::kOnRequest;
  return options;
}

}  // namespace

ReplicatedWeights::ReplicatedWeights(optim::NamedTensors parameters, Replica reduced,
                                     const StageWeightsOptions& options)
    : StageWeights(std::move(parameters)),
      stage_(options.stage),
      by_parameter_(options.reduction.end == ReductionEnd::kByParameter),
      ddp_(*options.data, std::move(reduced), on_request(options.reduction)) {}

void ReplicatedWeights::begin(const schedule::Program& program, int rank) {
  adds_up_.reset();
  num_left_ = num_weight_gradients(program, rank, stage_);
}

void ReplicatedWeights::before(const schedule::Action& action) {
  adds_up_.reset();
  if (schedule::makes_weight_gradient(action.kind) && --num_left_ > 0) adds_up_.emplace(ddp_);
}

void ReplicatedWeights::finish() {
  if (by_parameter_) return ddp_.finish_reduction({});
  ddp_.finish_reduction();
}

void ReplicatedWeights::after(const schedule::Action& /*action*/) { adds_up_.reset(); }

}  // namespace trireme::parallel
