#pragma once
// Checkpoints of a training run: one folder per checkpoint, FOLDER/step-00000120/, with model.safetensors,
// optimizer.safetensors, config.toml and manifest.json. Everything is written into a folder under a temporary
// name, the manifest last, synced, and only then renamed: a checkpoint exists when its folder has its final
// name, and is valid when every file has the size and XXH3 checksum of the manifest. See
// docs/checkpoint-format.md. One writer per folder; readers at any time.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

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

/// Writes `folder`/step-NNNNNNNN, replacing one of the same step. Then removes all but the newest `keep`
/// checkpoints (0: keeps all), those of later steps (a run that went back to before them has made them void),
/// and what earlier writers left half done. Only what has a manifest of ours is replaced or removed. Returns
/// the new folder. Throws DataError (disk full, not writable, something else stands there): what was there
/// before is untouched then.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder,
                                      const TrainingCheckpoint& checkpoint, int keep);

/// Folders of all checkpoints, oldest step first; valid or not. Empty when `folder` does not exist.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

/// Removes all but the newest `keep` checkpoints (at least 1). Throws DataError.
void keep_newest(const std::filesystem::path& folder, int keep);

/// Reads one and verifies it. Throws DamagedCheckpoint, or a DataError where that is not proven (no right to
/// read, a failing disk, a newer format), that names the file and what is wrong with it.
TrainingCheckpoint load_checkpoint(const std::filesystem::path& checkpoint_folder);

/// Parameters and buffers as evaluations used them: where the run keeps moving averages, those stand for the
/// parameters.
TensorMap weights_of(const TrainingCheckpoint& checkpoint);

/// The newest checkpoint of `folder`; empty when there is none. For the one writer of the folder: those that
/// are damaged are renamed to step-NNNNNNNN.damaged-1, ..., folders that only have such a name are passed
/// over, both with a warning. Throws DataError where it cannot be told what the newest one holds: an older
/// one is no substitute for it.
std::optional<TrainingCheckpoint> load_latest_checkpoint(const std::filesystem::path& folder, const Log& log);

}  // namespace trireme::checkpoint
