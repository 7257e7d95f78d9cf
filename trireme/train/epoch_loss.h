#pragma once
// Mean loss over the samples of the epoch under way; at the end of a run this is the run's training loss. A
// value.

#include <cstdint>

namespace trireme::train {

struct EpochLoss {
  std::int64_t epoch = 0;
  std::int64_t samples = 0;
  double sum = 0;

  /// Adds a step's mean loss over its samples; starts over when the epoch is a new one.
  void add(std::int64_t step_epoch, double loss, std::int64_t step_samples) {
    if (step_epoch != epoch) *this = {.epoch = step_epoch};
    sum += loss * static_cast<double>(step_samples);
    samples += step_samples;
  }
  double mean() const { return samples > 0 ? sum / static_cast<double>(samples) : 0; }
};

}  // namespace trireme::train
