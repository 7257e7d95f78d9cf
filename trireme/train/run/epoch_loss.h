#pragma once
// Mean loss over the current epoch. Each step has the weight that its loss was divided by. At the end of a
// run this is the run's training loss. A value.

#include <cstdint>

namespace trireme::train {

struct EpochLoss {
  std::int64_t epoch = 0;
  double count = 0;
  double sum = 0;

  /// Adds a step's mean loss; starts over when the epoch is a new one.
  void add(std::int64_t step_epoch, double loss, double step_count) {
    if (step_epoch != epoch) *this = {.epoch = step_epoch};
    sum += loss * step_count;
    count += step_count;
  }
  double mean() const { return count > 0 ? sum / count : 0; }
};

}  // namespace trireme::train
