#include "trireme/data/batch_layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::data {
namespace {

std::tuple<std::uint64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t> numbers(
    const BatchPlace& place) {
  return {place.epoch, place.number, place.first, place.size, place.full};
}

/// The places of the first steps, in order.
std::vector<BatchPlace> counted(std::int64_t samples, std::int64_t batch, const BatchRamp& ramp,
                                std::int64_t steps) {
  std::vector<BatchPlace> places;
  BatchPlace next;
  for (std::int64_t step = 0; step < steps; ++step) {
    next.full = batch;
    for (auto phase = ramp.rbegin(); phase != ramp.rend(); ++phase)
      if (step < phase->until) next.full = phase->size;
    next.size = std::min(next.full, samples - next.first);
    places.push_back(next);
    next.first += next.size;
    ++next.number;
    if (next.first == samples) next = {.epoch = next.epoch + 1};
  }
  return places;
}

TEST(BatchLayout, LastBatchOfEpochIsRemainder) {
  const BatchLayout layout(10, 4);
  EXPECT_EQ(layout.first_step_of(1), 3);
  EXPECT_EQ(numbers(layout.at(0)), numbers({.first = 0, .size = 4, .full = 4}));
  EXPECT_EQ(numbers(layout.at(2)), numbers({.number = 2, .first = 8, .size = 2, .full = 4}));
  EXPECT_EQ(numbers(layout.at(3'000'001)),
            numbers({.epoch = 1'000'000, .number = 1, .first = 4, .size = 4, .full = 4}));
}

TEST(BatchLayout, IncompleteLastBatchIsDropped) {
  const BatchLayout layout(10, 4, {}, LastBatch::kDropped);
  EXPECT_EQ(layout.first_step_of(1), 2);
  EXPECT_EQ(numbers(layout.at(1)), numbers({.number = 1, .first = 4, .size = 4, .full = 4}));
  EXPECT_EQ(numbers(layout.at(2)), numbers({.epoch = 1, .size = 4, .full = 4}));
  EXPECT_EQ(BatchLayout(8, 4, {}, LastBatch::kDropped).first_step_of(3), 6) << "no batch is left out";
  EXPECT_THROW(BatchLayout(3, 4, {}, LastBatch::kDropped), InvalidArgument);
}

TEST(BatchLayout, GrownBatchMayStartNextEpoch) {
  // Steps 0 and 1 use samples 0 to 5 of 10. After them no batch of 8 fits.
  const BatchLayout layout(10, 8, {{.until = 2, .size = 3}}, LastBatch::kDropped);
  EXPECT_EQ(numbers(layout.at(1)), numbers({.number = 1, .first = 3, .size = 3, .full = 3}));
  EXPECT_EQ(numbers(layout.at(2)), numbers({.epoch = 1, .size = 8, .full = 8}));
  EXPECT_EQ(numbers(layout.at(3)), numbers({.epoch = 2, .size = 8, .full = 8}));
  EXPECT_EQ(layout.first_step_of(1), 2);
  EXPECT_EQ(layout.first_step_of(3), 4);
}

TEST(BatchLayout, BatchBeyondDataHoldsAllSamples) {
  for (const std::int64_t batch : {std::int64_t{11}, std::numeric_limits<std::int64_t>::max()}) {
    const BatchLayout layout(10, batch);
    EXPECT_EQ(layout.first_step_of(5), 5) << batch;
    EXPECT_EQ(layout.at(4).size, 10) << batch;
  }
}

TEST(BatchLayout, BatchesGrowInMiddleOfEpoch) {
  const BatchLayout layout(20, 8, {{.until = 2, .size = 3}, {.until = 5, .size = 4}});
  std::vector<std::int64_t> sizes, firsts;
  for (std::uint64_t step = 0; step < 9; ++step) {
    sizes.push_back(layout.at(step).size);
    firsts.push_back(layout.at(step).first);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{3, 3, 4, 4, 4, 2, 8, 8, 4}));
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 3, 6, 10, 14, 18, 0, 8, 16}));
  EXPECT_EQ(layout.first_step_of(1), 6);
  EXPECT_EQ(layout.first_step_of(2), 9);
  EXPECT_EQ(layout.phases_in(0, 9), (std::vector<std::int64_t>{0, 2, 5}));
  EXPECT_EQ(layout.phases_in(2, 5), (std::vector<std::int64_t>{2}));
}

TEST(BatchLayout, FindsAnyStepAsByCounting) {
  for (std::int64_t seed = 0; seed < 300; ++seed) {
    Random random(31, seed);
    const auto from_to = [&](std::int64_t least, std::int64_t most) {
      return least + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most - least + 1)));
    };
    const std::int64_t samples = from_to(1, 60), batch = from_to(1, 70);
    BatchRamp ramp;
    for (std::int64_t phases = from_to(0, 4), until = 0; phases > 0; --phases) {
      until += from_to(1, 30);
      ramp.push_back({.until = until, .size = from_to(1, 40)});
    }
    const BatchLayout layout(samples, batch, ramp);
    const std::vector<BatchPlace> expected = counted(samples, batch, ramp, 200);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      ASSERT_EQ(numbers(layout.at(step)), numbers(expected[step])) << "case " << seed << ", step " << step;
      if (expected[step].first == 0) {
        ASSERT_EQ(layout.first_step_of(expected[step].epoch), step) << "case " << seed;
      }
    }
  }
}

TEST(BatchLayout, ExcessiveStepsAreNotCounted) {
  EXPECT_EQ(BatchLayout(1000, 1).first_step_of(std::numeric_limits<std::uint64_t>::max()),
            BatchLayout::kMaxSteps);
}

TEST(BatchLayout, RejectsEmptyDataBatchesAndUnorderedPhases) {
  EXPECT_THROW(BatchLayout(0, 4), InvalidArgument);
  EXPECT_THROW(BatchLayout(4, 0), InvalidArgument);
  EXPECT_THROW(BatchLayout(4, 2, {{.until = 3, .size = 0}}), InvalidArgument);
  EXPECT_THROW(BatchLayout(4, 2, {{.until = 0, .size = 1}}), InvalidArgument);
  EXPECT_THROW(BatchLayout(4, 2, {{.until = 3, .size = 1}, {.until = 3, .size = 2}}), InvalidArgument);
}

}  // namespace
}  // namespace trireme::data
