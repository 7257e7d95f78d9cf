#pragma once
// Batches of a data set of which no more is read than a rank computes with. Thread-safe.

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "trireme/data/dataset.h"
#include "trireme/data/training_data.h"

namespace trireme::data {

class BatchReader {
 public:
  explicit BatchReader(const Needed& needed) : needed_(needed) {}

  /// Dataset::get_batch, but that a side which is not needed has the values of sample 0 in every row, in the
  /// memory of one row: where neither is needed, nothing but sample 0 is ever read. Where sizes vary from
  /// batch to batch, all is read.
  Example read(const Dataset& dataset, std::span<const std::int64_t> indices) const;

 private:
  /// Sample 0 of the first data set that was read of, as a batch of one.
  Example like(const Dataset& dataset) const;

  const Needed needed_;
  mutable std::mutex mutex_;
  mutable std::optional<Example> like_;  ///< under the mutex
};

}  // namespace trireme::data
