#pragma once
// The folder that packed data are written into: rejected where it is in use, cleared where that was asked
// for, and cleared again when packing fails.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "trireme/data/internal/packed_manifest.h"
#include "trireme/data/pack.h"

namespace trireme::data {

class ShardSet {
 public:
  /// Throws as pack does. From here on the folder is marked as incomplete.
  ShardSet(const PackOptions& options, const std::string& source);
  /// Removes the written files, unless finish has been called.
  ~ShardSet();
  ShardSet(const ShardSet&) = delete;
  ShardSet& operator=(const ShardSet&) = delete;

  /// The next record; false: there is none. It may be empty.
  using NextRecord = std::function<bool(std::string& record)>;
  PackedSplit write(const std::string& split, const NextRecord& next) const;
  /// Removes the shards of all splits.
  void start_over() const;
  void finish(const PackedManifest& manifest);

 private:
  void clear() const;

  const std::filesystem::path folder_;
  const std::uint64_t shard_bytes_;
  bool made_ = false, finished_ = false;
};

/// The sizes in a manifest.
PackedSize size_of(const PackedManifest& manifest);

}  // namespace trireme::data
