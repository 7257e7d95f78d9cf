#pragma once
// The manifest of a training checkpoint: place of the run and, of every file, size and XXH3. It is written
// last, carries a checksum of its own, and may hold no key that we do not know, so that damage to it is
// found, too. Stateless; thread-safe.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::checkpoint {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kConfigFile = "config.toml";
inline constexpr const char* kManifestFile = "manifest.json";

struct FileRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::string xxh3;
};

struct Manifest {
  std::int64_t step = 0;
  std::uint64_t epoch = 0;
  std::int64_t batch = 0;
  std::vector<FileRecord> files;
};

/// Of a file that has just been written. Throws DataError when it cannot be read.
FileRecord record_of(const std::filesystem::path& folder, const std::string& name);

/// Throws DataError when it cannot be written.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

/// Throws DataError that names the file and says what is wrong: missing, damaged, of another format, a file
/// that every checkpoint has is not listed.
Manifest read_manifest(const std::filesystem::path& folder);

/// What distinguishes the file in `folder` from its record ("is truncated: ..."); empty when nothing does.
std::string problem_of(const std::filesystem::path& folder, const FileRecord& record);

}  // namespace trireme::checkpoint
