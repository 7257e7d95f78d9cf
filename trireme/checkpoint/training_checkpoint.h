#pragma once
// Checkpoints of a training run: one folder per checkpoint, FOLDER/step-00000120/, with files of the model's
// and of the optimizer's tensors, config.toml and manifest.json. Everything is written into a folder under a
// temporary name, the manifest last, synced, and only then renamed: a checkpoint exists when its folder has
// its final name, and is valid when every file has the size and XXH3 checksum of the manifest. See
// docs/checkpoint-format.md. One writer per folder, or several that write one checkpoint together
// (checkpoint_part.h); readers at any time.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// All of one, for a single process that has room for it.
struct TrainingCheckpoint {
  std::int64_t step = 0;    ///< updates done
  std::uint64_t epoch = 0;  ///< of the next batch
  std::int64_t batch = 0;   ///< number within the epoch of the next batch
  TensorMap model = {};
  TensorMap optimizer = {};
  std::string config = {};  ///< text of the run's configuration
};

/// Proven: a file is missing, or is not the one that the manifest names.
class DamagedCheckpoint : public DataError {
 public:
  using DataError::DataError;
};

/// Writes `folder`/step-NNNNNNNN as one writer, as finish_checkpoint does. Returns the new folder.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder,
                                      const TrainingCheckpoint& checkpoint, int keep);

/// Folders of all checkpoints, oldest step first; valid or not. Empty when `folder` does not exist.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

/// The step of the newest of them, by its name; nothing where there is none.
std::optional<std::int64_t> newest_step(const std::filesystem::path& folder);

/// Removes all but the newest `keep` checkpoints (at least 1). Throws DataError.
void keep_newest(const std::filesystem::path& folder, int keep);

/// Throws DamagedCheckpoint unless every file equals its entry in the manifest; reads every byte.
void check_whole(const std::filesystem::path& checkpoint_folder);

/// Verifies a checkpoint and reads it. Throws DamagedCheckpoint that names the file and its fault. If damage
/// is not proven (no right to read, a failing disk, a newer format), it throws another DataError.
TrainingCheckpoint load_checkpoint(const std::filesystem::path& checkpoint_folder);

}  // namespace trireme::checkpoint
