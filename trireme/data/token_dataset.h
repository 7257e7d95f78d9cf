#pragma once
// One split of a packed text (docs/data.md, "Packed data"): blocks of tokens, and as their targets those one
// further, as in TextDataset. Only the index of the files is kept in memory. Pages are checked against their
// checksums when they are first read, and the files for changes at each call. Immutable but for its record of
// checked pages; thread-safe.

#include <memory>
#include <string>

#include "trireme/data/dataset.h"
#include "trireme/data/packed_files.h"

namespace trireme::data {

struct TokenBlocks {
  std::int64_t block = 64;  ///< tokens per sample
  std::int64_t stride = 1;  ///< tokens from the start of a sample to that of the next
};

struct PackedManifest;

class TokenDataset : public Dataset {
 public:
  /// `split`: "train" or "test". Throws DataError as RecordDataset does, where the folder holds no text, or
  /// fewer tokens than one sample needs.
  TokenDataset(const PackedFiles& files, const std::string& split, const TokenBlocks& blocks);
  /// For callers that have read the manifest.
  TokenDataset(const PackedFiles& files, const PackedManifest& manifest, const std::string& split,
               const TokenBlocks& blocks);
  ~TokenDataset() override;

  std::int64_t size() const override;
  /// input: i64 (block), the tokens; target: i64 (block), those one further.
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices) const override;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace trireme::data
