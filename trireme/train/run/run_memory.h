#pragma once
// State that a process of an elastic job (comm/elastic.h) keeps of a run from one world to the next: the
// opened data, and states of the run in its memory. The next world restores the newest state that all its
// processes have. Values; one thread.

#include <optional>
#include <utility>
#include <vector>

#include "trireme/checkpoint/held_state.h"
#include "trireme/data/dataset.h"

namespace trireme::train {

class RunMemory {
 public:
  /// Opened by the first world of the process.
  std::optional<data::DataSource> data = std::nullopt;

  /// Whether an earlier world has left a state of the run.
  bool has_state() const { return own_.has_value() || !copies_.empty(); }
  /// All that is kept.
  std::vector<checkpoint::HeldState> states() const;

  /// The trainer's own state, shared with it, of a world that is lost; until a trainer has it again.
  void keep(checkpoint::HeldState state) { own_ = std::move(state); }
  void forget_own() { own_.reset(); }

  /// A copy. Those before it stay until forget_older_copies(): another rank may have only these.
  void keep_copy(checkpoint::HeldState copy) { copies_.push_back(std::move(copy)); }
  void forget_older_copies();

 private:
  std::optional<checkpoint::HeldState> own_;
  std::vector<checkpoint::HeldState> copies_;  ///< the newest last
};

}  // namespace trireme::train
