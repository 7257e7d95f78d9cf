#pragma once
// Weights of a stage of an asynchronous pipeline, which are updated while micro-batches are under way: each
// of those computes with the version that the program's kind of versions gives it. Where several ranks of the
// pipeline hold the stage, each has a part of an update's micro-batches. One thread.

#include <vector>

#include "trireme/parallel/pipeline/internal/stage_weights.h"
#include "trireme/parallel/pipeline/internal/versioned_parameters.h"

namespace trireme::parallel {

class VersionedWeights final : public StageWeights {
 public:
  VersionedWeights(const optim::NamedTensors& leaves, int stage, int holders)
      : StageWeights(leaves), stage_(stage), holders_(holders), versions_(leaves) {}

  void begin(const schedule::Program& program, int rank) override;
  void continue_with(const schedule::Program& program, int rank) override;
  void before(const schedule::Action& action) override;
  void after(const schedule::Action& action) override;
  void begin_update() override;
  void end_update() override { versions_.end_update(); }
  void show_newest() override { versions_.show_newest(); }
  const optim::NamedTensors& parameters() const override { return versions_.newest(); }
  Pipeline::Staleness staleness() const override { return staleness_; }

 private:
  int version_of(const schedule::Action& action) const {
    return version_of_[static_cast<std::size_t>(action.microbatch)];
  }

  const int stage_, holders_;
  VersionedParameters versions_;
  std::vector<int> version_of_;  ///< by micro-batch
  Pipeline::Staleness staleness_;
};

}  // namespace trireme::parallel
