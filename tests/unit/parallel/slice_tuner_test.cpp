// The slice size is found by measurement: the size whose steps take the least time over all ranks.
#include "trireme/parallel/data/internal/slice_tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace trireme::parallel {
namespace {

constexpr std::int64_t kUntilOver = SliceTuner::kFirst + SliceTuner::kSteps * SliceTuner::kSizes.size() + 1;

/// Seconds of a step with slices of that size on a rank.
using StepTime = std::function<double(std::size_t rank, std::int64_t slice_bytes, std::int64_t step)>;

/// The slice sizes of all steps, which must be the same on all ranks.
std::vector<std::int64_t> sizes_of_steps(std::size_t num_ranks, std::int64_t num_steps,
                                         const StepTime& time) {
  std::vector<SliceTuner> tuners(num_ranks);
  std::vector<double> clocks(num_ranks);
  std::vector<std::int64_t> sizes;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    double sum_s = 0;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      tuners[rank].begin_step(clocks[rank]);
      EXPECT_EQ(tuners[rank].slice_bytes(), tuners[0].slice_bytes()) << "rank " << rank << ", step " << step;
      EXPECT_EQ(tuners[rank].told(), tuners[0].told());
      sum_s += tuners[rank].told_s();
      clocks[rank] += time(rank, tuners[rank].slice_bytes(), step);
    }
    const int told = tuners[0].told();
    for (SliceTuner& each : tuners) {
      if (told >= 0) each.learn(told, sum_s);
    }
    sizes.push_back(tuners[0].slice_bytes());
  }
  EXPECT_EQ(tuners[0].is_over(), num_steps > kUntilOver);
  return sizes;
}

TEST(SliceTuning, TakesSizeWithFastestSteps) {
  for (const std::int64_t best : SliceTuner::kSizes) {
    const auto sizes = sizes_of_steps(2, kUntilOver + 5, [&](std::size_t, std::int64_t size, std::int64_t) {
      return size == best ? 0.9 : 1.0;
    });
    for (std::size_t step = kUntilOver; step < sizes.size(); ++step) EXPECT_EQ(sizes[step], best);
  }
}

TEST(SliceTuning, TriesEachSizeForAsManySteps) {
  const auto sizes = sizes_of_steps(1, kUntilOver, [](auto...) { return 1.0; });
  for (const std::int64_t size : SliceTuner::kSizes) {
    const auto tried = std::count(sizes.begin() + SliceTuner::kFirst, sizes.end() - 1, size);
    EXPECT_EQ(tried, SliceTuner::kSteps) << size;
  }
}

TEST(SliceTuning, IgnoresStepsThatSaveOrEvaluate) {
  const auto sizes = sizes_of_steps(1, kUntilOver + 1, [](std::size_t, std::int64_t size, std::int64_t step) {
    return (step % 5 == 0 ? 50.0 : 0.0) + (size == SliceTuner::kSizes[3] ? 0.9 : 1.0);
  });
  EXPECT_EQ(sizes.back(), SliceTuner::kSizes[3]);
}

TEST(SliceTuning, IgnoresStepsBeforeFirstTimed) {
  const auto sizes = sizes_of_steps(1, kUntilOver + 1, [](std::size_t, std::int64_t size, std::int64_t step) {
    if (step < SliceTuner::kFirst) return 100.0;
    return size == SliceTuner::kSizes[0] ? 0.9 : 1.0;
  });
  EXPECT_EQ(sizes.back(), SliceTuner::kSizes[0]);
}

/// One rank by itself would select another size.
TEST(SliceTuning, RanksTakeTheirBestCommonSize) {
  const auto sizes = sizes_of_steps(3, kUntilOver + 1, [](std::size_t rank, std::int64_t size, std::int64_t) {
    if (rank == 1) return size == SliceTuner::kSizes[1] ? 0.95 : 1.0;
    return size == SliceTuner::kSizes[4] ? 0.9 : 1.0;
  });
  EXPECT_EQ(sizes.back(), SliceTuner::kSizes[4]);
}

}  // namespace
}  // namespace trireme::parallel
