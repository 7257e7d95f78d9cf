#pragma once
// Samples that are cached in memory after their first read, for samples that cost more to make than to keep:
// an image that is decoded and resized. Cached samples stay, up to a limit that data sets may share, and
// nothing is evicted (ADR 0059). An epoch reads each sample once, in another order than the one before. So a
// share f of the samples in memory saves a share f of the reads, where LRU eviction saves about f^2 / 2.

#include <atomic>
#include <cstdint>
#include <memory>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// Memory limit of the cache, for one data set or several. Thread-safe.
class SampleMemory {
 public:
  explicit SampleMemory(std::int64_t most_bytes) : left_(most_bytes) {}
  /// False: there is no room for so many bytes more.
  bool take(std::int64_t bytes);
  void give_back(std::int64_t bytes) { left_ += bytes; }

 private:
  std::atomic<std::int64_t> left_;
};

/// The same samples. Those for which `memory` has room are read once in its lifetime, by each process. They
/// are shared: do not write into their tensors. A sample that cannot be read is not cached. Data that vary
/// from epoch to epoch (Dataset::in_epoch) are not cached.
std::shared_ptr<const Dataset> kept_samples(std::shared_ptr<const Dataset> samples,
                                            std::shared_ptr<SampleMemory> memory);

}  // namespace trireme::data
