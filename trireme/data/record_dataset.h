#pragma once
// One split of a folder of packed data (docs/data.md, "Packed data"): samples as they were packed, normalised
// or decoded by the manifest. A batch is read in the order of its samples in the files, neighbours at once.
// Every record's checksum is computed each time that it is read. Immutable; thread-safe.

#include <memory>

#include "trireme/data/dataset.h"
#include "trireme/data/packed_files.h"

namespace trireme::data {

struct PackedManifest;

class RecordDataset : public Dataset {
 public:
  /// `split`: "train" or "test". Throws DataError: no packed data there, none of that split, packing was not
  /// completed, a shard that is missing, cut short or damaged, or text.
  RecordDataset(const PackedFiles& files, const std::string& split);
  /// For callers that have read the manifest.
  RecordDataset(const PackedFiles& files, const PackedManifest& manifest, const std::string& split,
                std::int64_t most_pixels = kMaxPixels);
  ~RecordDataset() override;

  std::int64_t size() const override;
  /// Throws DataError, with file, offset and sample, when the record is not as it was written.
  Example get(std::int64_t index) const override;
  Fields get_targets(std::span<const std::int64_t> indices) const override;
  Example get_batch(std::span<const std::int64_t> indices) const override;
  std::vector<std::int64_t> shard_ends() const override;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace trireme::data
