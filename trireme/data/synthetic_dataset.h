#pragma once
// Images that need no file: each class has its own random pattern, a sample is its class's pattern plus
// noise, so that a model learns them in a few steps. Sample i depends on (seed, split, i) only, nothing is
// stored but the patterns. Immutable; thread-safe.

#include "trireme/data/dataset.h"

namespace trireme::data {

/// How many samples of which size; the same options give the same samples.
struct SyntheticOptions {
  std::int64_t num_samples = 4096;
  std::int64_t num_classes = 10;
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::uint64_t seed = 0;   ///< of the patterns: the same for both splits
  std::uint64_t split = 0;  ///< 0 train, 1 test
};

class SyntheticDataset : public Dataset {
 public:
  /// Throws InvalidArgument unless there are samples, classes and pixels.
  explicit SyntheticDataset(const SyntheticOptions& options);

  std::int64_t size() const override { return options_.num_samples; }
  Example get(std::int64_t index) const override;

 private:
  SyntheticOptions options_;
  std::vector<float> patterns_;  ///< (class, pixel)
};

}  // namespace trireme::data
