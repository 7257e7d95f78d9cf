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

/// Writes `folder`/step-NNNNNNNN, replacing one of the same step. Then removes all but the newest `keep`
/// checkpoints (0: keeps all), those of later steps (a run that went back to before them has made them void),
/// and what earlier writers left half done. Returns the new folder. Throws DataError (disk full, not
/// writable): what was there before is untouched then.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder,
                                      const TrainingCheckpoint& checkpoint, int keep);

/// Folders of all checkpoints, oldest step first; valid or not. Empty when `folder` does not exist.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

/// Reads one and verifies it. Throws DataError that names the file and what is wrong with it.
TrainingCheckpoint load_checkpoint(const std::filesystem::path& checkpoint_folder);

/// The newest valid checkpoint of `folder`; damaged ones are passed over with a warning that says why. Empty
/// when there is none.
std::optional<TrainingCheckpoint> load_latest_checkpoint(const std::filesystem::path& folder, const Log& log);

}  // namespace trireme::checkpoint
