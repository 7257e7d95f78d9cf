#include "trireme/parallel/pipeline/internal/replicated_weights.h"

#include <algorithm>

namespace trireme::parallel {
namespace {

DataParallelOptions on_request(DataParallelOptions options) {
  options.end = ReductionEnd::kOnRequest;
  return options;
}

}  // namespace

ReplicatedWeights::ReplicatedWeights(const comm::Group& data, Replica replica, DataParallelOptions options,
                                     int stage)
    : StageWeights(replica.parameters),
      stage_(stage),
      ddp_(data, std::move(replica), on_request(std::move(options))) {}

void ReplicatedWeights::begin(const schedule::Program& program, int rank) {
  adds_up_.reset();
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  num_left_ = static_cast<int>(std::ranges::count_if(actions, [this](const schedule::Action& action) {
    return action.stage == stage_ && schedule::makes_weight_gradient(action.kind);
  }));
}

void ReplicatedWeights::before(const schedule::Action& action) {
  adds_up_.reset();
  if (schedule::makes_weight_gradient(action.kind) && --num_left_ > 0) adds_up_.emplace(ddp_);
}

void ReplicatedWeights::after(const schedule::Action& /*action*/) { adds_up_.reset(); }

}  // namespace trireme::parallel
