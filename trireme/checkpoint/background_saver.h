#pragma once
// Saves checkpoints while training continues. save() takes the tensors and returns; a thread copies them,
// then writes and syncs the copy. Training may continue at once with work that does not change these tensors
// (forward and backward of the next step). It must call wait_until_copied() before it changes them (the
// update). So a save costs training only the part of the copy that the next forward and backward do not
// cover. Shards whose values are offloaded are not copied: for those that wait lasts until they are written.
// The copy's memory, as much as the tensors, is kept for the next save. Idea: CheckFreq (Mohan et al., FAST
// 2021, section 4.1), where the snapshot runs concurrently with the computation that does not touch the
// weights.
//
// Each rank that writes a part of a checkpoint has a saver. The one of writer 0 also waits for the parts of
// the others and completes the checkpoint. To wait for that, call wait_until_written() on every rank first,
// then synchronize the ranks. The synchronization detects a rank that has died, and after it all parts are
// there.
//
// A write that fails leaves the folder's older checkpoints as they are. The next call of check(), save() or a
// wait throws its error. For one training thread.

#include <filesystem>
#include <memory>
#include <vector>

#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/telemetry/trace.h"

namespace trireme::checkpoint {

class BackgroundSaver {
 public:
  /// Where a checkpoint goes, and how many the folder keeps.
  struct Destination {
    std::filesystem::path folder;
    int keep = 1;
  };

  /// `trace`, where there is one, gets the spans of the saving thread, and outlives the saver.
  explicit BackgroundSaver(telemetry::Trace* trace = nullptr);
  /// Waits for the current write, and some seconds for parts of others; an error in it that was not retrieved
  /// is lost.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Begins to save; waits first for the save before to be on disk. Tensors on a device are copied before it
  /// returns. Throws DataError when the save before has failed, or takes longer than half an hour.
  void save(CheckpointPart part, std::vector<Destination> destinations);

  /// Returns when the tensors handed over may change. Cheap when there is nothing to wait for.
  void wait_until_copied();
  /// Throws the DataError of a save that has failed since the last call; waits for nothing.
  void check();
  /// Returns when this part is on disk. Throws DataError as save() does.
  void wait_until_written();
  /// Returns when this part is on disk, on writer 0 the whole checkpoint. Throws DataError as save() does.
  void wait();

  /// Seconds that save(), wait_until_copied() and wait_until_written() have taken from training so far.
  double stalled_s() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::checkpoint
