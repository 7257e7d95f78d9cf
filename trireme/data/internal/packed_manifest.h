#pragma once
// The manifest of a folder of packed data: the format of its samples, and the shards of each split. It is
// written twice: when packing begins, marked as incomplete, and when every shard is in its place. It has a
// checksum of its own. Functions are stateless; thread-safe.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/internal/record_layout.h"
#include "trireme/data/internal/record_shard.h"
#include "trireme/data/packed_files.h"

namespace trireme::data {

inline constexpr const char* kManifestFile = "dataset.json";
inline constexpr const char* kShardExtension = ".trr";

struct PackedSplit {
  std::int64_t samples = 0;  ///< of text: tokens
  /// Of all shards.
  std::uint64_t bytes() const;
  std::vector<ShardSummary> shards;
};

/// Of a text. Its records are pages of as many tokens, the last of a split may have fewer.
struct TokenLayout {
  std::int64_t bytes_per_token = 1;  ///< 1, 2 or 4
  std::int64_t page_tokens = 0;
  std::string characters = {};                       ///< the byte of each token; empty: numbers
  std::optional<std::int64_t> end_of_document = {};  ///< the token after each document
};

struct PackedManifest {
  std::string source, source_path;  ///< the data set that it was packed from, and where that was
  std::vector<std::int64_t> input_shape = {};
  std::int64_t num_classes = 0;
  std::int64_t targets_per_sample = 1;
  std::string held_out = "test";
  std::vector<std::string> classes = {};   ///< names; empty: they have none
  double black = 0;                        ///< its images' value of black
  RecordLayout layout = {};                ///< of samples
  std::optional<TokenLayout> tokens = {};  ///< of text
  PackedSplit train = {};
  std::optional<PackedSplit> test = {};

  /// "train" or "test". Throws DataError where there is none; `files` are for the message.
  const PackedSplit& split(const std::string& name, const PackedFiles& files) const;
};

/// "train-00002.trr"
std::string name_of_shard(const std::string& split, std::size_t number);

/// The first of the two.
void write_unfinished_manifest(const std::filesystem::path& folder, const std::string& source);
void write_manifest(const std::filesystem::path& folder, const PackedManifest& manifest);
/// Throws DataError: none there, foreign, damaged, of another version, of a folder that is not complete.
PackedManifest read_manifest(const PackedFiles& files);

}  // namespace trireme::data
