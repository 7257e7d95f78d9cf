#pragma once
// Content of a folder of packed data, and its damage. Functions without state; thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/packed_files.h"

namespace trireme::data {

struct PackedContents {
  /// A tensor of each sample.
  struct Field {
    std::string part;  ///< "input" or "target"
    std::string name;
    std::string kind;  ///< "u8 (1, 28, 28) -> f32", "image file"
  };
  /// A file of records.
  struct Shard {
    std::string file;
    std::int64_t records = 0;
    std::uint64_t bytes = 0;
  };
  /// The samples of one part of the data, such as those for training.
  struct Split {
    std::string name;          ///< "train", "test"
    std::int64_t samples = 0;  ///< of text: tokens
    std::uint64_t bytes = 0;
    std::vector<Shard> shards;
  };
  std::string source, source_path;
  bool is_text = false;
  std::vector<Field> fields;         ///< of samples
  std::int64_t bytes_per_token = 0;  ///< of text
  std::optional<std::int64_t> end_of_document = {};
  std::int64_t num_classes = 0;  ///< of text: of the vocabulary
  std::vector<std::string> classes;
  std::string held_out;
  std::vector<Split> splits;
  std::vector<std::string>
      first_samples;  ///< of the training data, in words: "input: Float of shape [1, 28, 28]; ..."
};

/// Opens every shard. Throws DataError as RecordDataset does.
PackedContents inspect_packed(const PackedFiles& files);

/// A record, or a whole shard, that differs from the written one.
struct PackedDamage {
  std::string file;
  std::string problem;  ///< with file, offset and sample, as far as they are known
  std::string split = {};
  std::optional<std::int64_t> sample = {};  ///< of text: page; none: the shard as a whole
  std::optional<std::uint64_t> offset = {};
};

/// Result of verify_packed.
struct PackedVerdict {
  std::int64_t records = 0;  ///< that were found whole
  std::uint64_t bytes = 0;
  std::vector<PackedDamage> damages;
};

/// Reads every record of every shard. `progress` is called now and then. Throws DataError where the manifest
/// cannot be read.
PackedVerdict verify_packed(
    const PackedFiles& files,
    const std::function<void(std::uint64_t bytes, std::uint64_t of)>& progress = nullptr);

}  // namespace trireme::data
