#pragma once
// Where a run's files live, and how a new run makes room: nothing that an earlier run of the same name left
// is overwritten or deleted, its folder is renamed to NAME.1, NAME.2, ... (the next free number; the highest
// is the most recent). Used by rank 0.

#include <filesystem>

namespace trireme::train {

struct RunFolder {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.toml"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
  std::filesystem::path summary() const { return root / "summary.json"; }
  std::filesystem::path model() const { return root / "model.safetensors"; }
  std::filesystem::path best() const { return root / "best"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
};

/// Renames an existing folder out of the way and creates an empty one. Returns where the old one went; empty
/// when there was none. Throws DataError.
std::filesystem::path start_fresh(const RunFolder& folder);

}  // namespace trireme::train
