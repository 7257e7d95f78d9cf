#pragma once
// The states of a run in the memory of its ranks, for the next world of an elastic job: the trainer's own
// state, when the world is lost before an update has begun, and copies (checkpoint.in_memory_every_steps).

#include <optional>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/run_memory.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {

class HeldRun {
 public:
  /// All of them outlive it. Collective.
  HeldRun(RunMemory& memory, Trainer& trainer, const Progress& progress, comm::Context& context);

  /// Copies a restored state: the next failure may come before the next copy is due. Collective.
  void before_first_step();
  /// Copies tensors that forward and backward change before the update (running statistics).
  void before_step();
  /// Copies the state where that is due. Collective.
  void after_step();
  /// Keeps the trainer's state, if it is that of a step.
  void keep_own() noexcept;
  /// Copies the state after this step to the memory of another host. `world_ends`: to one that does not leave
  /// the job. Collective.
  void hand_over(bool world_ends);

 private:
  RunMemory& memory_;
  Trainer& trainer_;
  const Progress& progress_;
  comm::Context& context_;
  const std::int64_t every_steps_;
  std::vector<std::string> names_;  ///< of the tensors of all ranks
  std::optional<checkpoint::PeerCopies> copies_;
  bool changes_in_forward_ = false;
  std::int64_t step_before_ = 0;    ///< the steps done when before_step_ was copied
  checkpoint::Shards before_step_;  ///< values of tensors that change in forward
};

}  // namespace trireme::train
