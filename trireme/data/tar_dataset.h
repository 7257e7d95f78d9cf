#pragma once
// Samples in tar archives in the layout of WebDataset: consecutive members KEY.FIELD of one key are a sample.
// The archives are read as they are, and indexed: one pass over the headers of each when it is opened. After
// that any sample is one read. Immutable but for its record of warnings; thread-safe.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/data/byte_source.h"
#include "trireme/data/class_labels.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

struct TarDatasetOptions {
  std::vector<std::string> inputs = {};   ///< fields; empty: images, where there are none all but the targets
  std::vector<std::string> targets = {};  ///< fields; empty: "cls", if there is one
  std::int64_t most_pixels = kMaxPixels;  ///< of an image
  std::filesystem::path index_folder = {};  ///< where indexes are kept from run to run; empty: nowhere
};

class TarDataset : public Dataset {
 public:
  /// Throws DataError, with file, offset and member: archives that are damaged, samples whose fields differ,
  /// keys that come again (docs/data.md). Throws InvalidArgument: no archive, fields that samples do not
  /// have, or that have no decoder.
  TarDataset(std::vector<std::shared_ptr<const ByteSource>> shards, const TarDatasetOptions& options,
             const Log& log);
  ~TarDataset() override;

  std::int64_t size() const override;
  /// One field has no name, several have those of the archive. Images: u8 (3, height, width).
  Example get(std::int64_t index) const override;
  Fields get_targets(std::span<const std::int64_t> indices) const override;
  bool sizes_vary() const override;
  std::vector<std::int64_t> shard_ends() const override;

  /// The only input is an image.
  bool holds_images() const;
  /// Classes of the only target by the number of a sample; none: it is no field "cls".
  ClassLabels labels(const std::vector<std::int64_t>& ignored = {}) const;
  /// Of the keys of all samples, and the sizes of their fields.
  std::string content_digest() const;
  /// "SHARD, sample 'KEY'"
  std::string name_of(std::int64_t index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::data
