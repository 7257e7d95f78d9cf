#pragma once
// Samples that are kept in memory once they have been read, for those that cost more to make than to keep: an
// image that is decoded and brought to its size. What was kept stays, up to a limit that data sets may share,
// and nothing gives way to another (ADR 0059): an epoch asks for each sample once, in another order than the
// one before, so that a share f of the samples in memory saves a share f of the reads, where the one not used
// longest gives way it saves about f^2 / 2.

#include <atomic>
#include <cstdint>
#include <memory>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// What may be kept, by one data set or several. Thread-safe.
class SampleMemory {
 public:
  explicit SampleMemory(std::int64_t most_bytes) : left_(most_bytes) {}
  /// False: there is no room for so many bytes more.
  bool take(std::int64_t bytes);
  void give_back(std::int64_t bytes) { left_ += bytes; }

 private:
  std::atomic<std::int64_t> left_;
};

/// The same samples; those for which `memory` has room are read once in its lifetime, by each process. They
/// are shared: nobody may write into a tensor. A sample that cannot be read is none that is kept. Of data
/// that vary from epoch to epoch (Dataset::in_epoch) nothing is kept.
std::shared_ptr<const Dataset> kept_samples(std::shared_ptr<const Dataset> samples,
                                            std::shared_ptr<SampleMemory> memory);

}  // namespace trireme::data
