#pragma once
// For how long evaluations have been no better. A value.

#include <cstdint>
#include <limits>

namespace trireme::train {

struct Patience {
  double best = -std::numeric_limits<double>::infinity();  ///< score; higher is better
  std::int64_t since = 0;                                  ///< evaluations after it

  /// One that is as good as the best is no better.
  void take(double score) {
    since = score > best ? 0 : since + 1;
    if (since == 0) best = score;
  }
};

}  // namespace trireme::train
