#pragma once
// The shapes of the tensors between stages, so that receives can be posted before anything arrives. The
// stages compute them once for all sizes of the inputs together, by a forward in evaluation mode without
// effects. The first rank of each sends the result to those with the next stage. Collective among the ranks
// of a pipeline. One thread.

#include <map>
#include <vector>

#include "trireme/parallel/pipeline/internal/stage.h"
#include "trireme/parallel/pipeline/internal/stage_weights.h"
#include "trireme/parallel/pipeline/internal/transfers.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {

class OutputShapes {
 public:
  /// `mine` and `weights`: this rank's stages by number. All outlive it.
  OutputShapes(comm::Group group, const std::vector<Pipeline::StageLayers>& stages,
               std::map<int, Stage>& mine, const WeightsOfStages& weights, c10::Device device)
      : group_(std::move(group)), stages_(stages), mine_(mine), weights_(weights), device_(device) {}

  /// Asks the stages where these sizes are new. Collective. Throws CommError.
  void learn(const Fields& inputs);
  /// For inputs of the first stage the outputs of every stage but the last; known for this rank's stages
  /// and their neighbours. Throws InvalidArgument: sizes that were not learned.
  const std::vector<EdgeSpec>& of(const Fields& inputs) const;

 private:
  std::vector<EdgeSpec> ask(const Fields& inputs);
  int first_rank(std::size_t stage) const { return stages_[stage].ranks.front(); }
  bool is_on(std::size_t stage, int rank) const;

  comm::Group group_;
  const std::vector<Pipeline::StageLayers>& stages_;
  std::map<int, Stage>& mine_;
  const WeightsOfStages& weights_;
  const c10::Device device_;
  std::map<std::vector<std::int64_t>, std::vector<EdgeSpec>> known_;  ///< by sizes, -1 after each input's
};

}  // namespace trireme::parallel
