#pragma once
// Content and integrity of a checkpoint, for people and scripts that inspect one. It reads no tensors into
// memory, and damage is a result, not an error. Stateless; thread-safe.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

struct CheckpointContents {
  std::int64_t step = 0;
  std::uint64_t epoch = 0;
  std::int64_t batch = 0;
  std::string config;                      ///< text of the run's configuration
  std::vector<SafetensorsContents> files;  ///< the safetensors files the manifest names
};

/// Reads manifest, configuration and headers of one checkpoint's folder, not the tensors and no checksums.
/// Throws DataError.
CheckpointContents inspect_checkpoint(const std::filesystem::path& checkpoint_folder);

/// Result of verify_checkpoint for one file.
struct FileVerdict {
  std::string name;
  std::uint64_t bytes = 0;
  std::string problem;  ///< "is missing", "is truncated: ..."; empty: the file is as it was written
};

/// Reads every byte of one checkpoint's folder and compares sizes and XXH3 with the manifest. The manifest
/// comes first; files that it does not name are a problem, too. Throws DataError only when there is no such
/// folder.
std::vector<FileVerdict> verify_checkpoint(const std::filesystem::path& checkpoint_folder);

}  // namespace trireme::checkpoint
