#pragma once
// The manifest of a training checkpoint: place of the run and, of every file, size and XXH3. It is written
// last, has a checksum of its own, and may hold no unknown key, so that damage to it is found, too. Proven
// damage (DamagedCheckpoint) is distinguished from files that cannot be read here and now (a plain
// DataError). Stateless; thread-safe.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::checkpoint {

inline constexpr const char* kConfigFile = "config.toml";
inline constexpr const char* kManifestFile = "manifest.json";

enum class FileKind { kModel, kOptimizer, kConfig };

/// Of writer `number` of `num_parts`: "model.safetensors", "model-00002-of-00004.safetensors".
std::string name_of_file(FileKind kind, int number, int num_parts);
/// The kind of a checkpoint's file by its name; empty for a foreign one.
std::optional<FileKind> kind_of(const std::string& name);

struct FileRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::string xxh3;
};

/// The first whose batches come in the order of today (data/permutation.h).
inline constexpr int kFirstInThisOrder = 3;

struct Manifest {
  int version = 0;  ///< that was read; the newest is written
  std::int64_t step = 0;
  std::uint64_t epoch = 0;
  std::int64_t batch = 0;
  std::vector<FileRecord> files;
};

/// Of a file that has just been written. Throws DataError when it cannot be read.
FileRecord record_of(const std::filesystem::path& folder, const std::string& name);

/// Throws DataError when it cannot be written.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

/// Not a checkpoint at all, with any name.
class ForeignFolder : public DataError {
 public:
  using DataError::DataError;
};

/// Throws an error that names the file and its fault: ForeignFolder; DamagedCheckpoint (missing, or not as it
/// was written); DataError for files that cannot be opened, for another version, and for files without a
/// checksum.
Manifest read_manifest(const std::filesystem::path& folder);

/// How the file in `folder` has been damaged ("is truncated: ..."), by its record; empty when it has not.
/// Throws DataError when it cannot be read.
std::string problem_of(const std::filesystem::path& folder, const FileRecord& record);

}  // namespace trireme::checkpoint
