#pragma once
// Finds the best slice size of gradients by trials. The steps of each size are timed, ranks add up their
// times, and all take the size with the least sum. A step's slices are a function of its number and of sums
// that are equal on all ranks. So no rank takes another size than the others. The trial and the known sums
// change at the begin of a step only. A value; not thread-safe.

#include <array>
#include <cstdint>
#include <vector>

namespace trireme::parallel {

class SliceTuner {
 public:
  /// Bytes. The last is the largest.
  static constexpr std::array<std::int64_t, 5> kSizes = {std::int64_t{256} << 10, std::int64_t{512} << 10,
                                                         std::int64_t{1} << 20, std::int64_t{2} << 20,
                                                         std::int64_t{4} << 20};
  static constexpr int kFirst = 3;  ///< steps before the first that is timed: memory is made in them
  static constexpr int kSteps = 7;  ///< of each size; their median counts

  /// The first gradient of a step is on its way; seconds of any clock.
  void begin_step(double now_s);

  /// Of this step's slices.
  std::int64_t slice_bytes() const;
  /// Number of the size whose time this step's slices carry; -1: none.
  int told() const;
  /// This rank's, in seconds.
  double told_s() const { return median_s_; }
  /// Result of a slice of this step: the sum over the ranks. At the latest before the next step.
  void learn(int size, double sum_s) { sums_s_[static_cast<std::size_t>(size)] = sum_s; }
  bool is_over() const { return step_ >= kFirst + kSteps * static_cast<std::int64_t>(kSizes.size()) + 1; }

 private:
  std::int64_t step_ = -1;  ///< from 0 on
  double began_s_ = 0, median_s_ = 0;
  std::vector<double> times_s_;  ///< of the size that is tried
  std::array<double, kSizes.size()> sums_s_ = {};
};

}  // namespace trireme::parallel
