#pragma once
// Blocks of far sources, cached in a folder of this host, for ranks, processes and runs at once. Guarantees
// (ADR 0048): a block that is read equals the written one, by its checksum. The blocks together are no more
// than the limit, and the least recently used ones are removed first. Ranks that need the same block fetch it
// once. A folder that is full, read-only or damaged costs one warning and no more than the time it would have
// saved. Thread-safe.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "trireme/base/log.h"
#include "trireme/data/byte_source.h"

namespace trireme::data {

/// Folder and bounds of the cache.
struct DiskCacheOptions {
  std::filesystem::path folder;
  std::int64_t most_bytes = std::int64_t{10} << 30;  ///< of the folder; the smallest of all its users counts
  std::int64_t memory_bytes = std::int64_t{32} << 20;  ///< of the blocks that this process used last
  double wait_s = 60;  ///< longest wait for a rank that fetches the same block; then this one does so, too
};

class DiskCache {
 public:
  static constexpr std::int64_t kBlockBytes = 1 << 20;
  static constexpr std::int64_t kMaxAtOnce = 4;  ///< blocks: as much as one request asks for

  /// Throws InvalidArgument for a limit below 16 blocks.
  DiskCache(const DiskCacheOptions& options, const Log& log);
  ~DiskCache();
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  /// Bytes [number * kBlockBytes, ...) of the source: from memory, from the folder, or from the source and
  /// then kept in both.
  std::shared_ptr<const std::string> block(const ByteSource& source, std::int64_t number);
  struct Block {
    std::shared_ptr<const std::string> content;
    std::int64_t fetched = 0;  ///< blocks from this one on that were read from the source
  };
  /// The same. A read from the source includes the following blocks that no process has or fetches, at most
  /// `at_once` blocks in all.
  Block block_of_several(const ByteSource& source, std::int64_t number, std::int64_t at_once);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The source, read by blocks through the cache. A read that has to wait where the last one that had to has
/// ended asks for twice as much, up to DiskCache::kMaxAtOnce: from place to place the latency of a server is
/// waited for a quarter of the times.
std::shared_ptr<const ByteSource> cached(std::shared_ptr<const ByteSource> source,
                                         std::shared_ptr<DiskCache> cache);

}  // namespace trireme::data
