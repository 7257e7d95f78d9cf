// The memory of sharded gradients: at most that of whole gradients, and equal to the estimate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/unit/parallel/stage_layers.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/zero/gradient_buckets.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;

struct MemoryCase {
  const char* name;
  std::vector<std::vector<std::int64_t>> shapes;
  double bucket_mib = 25;
};

const std::vector<MemoryCase>& memory_cases() {
  static const std::vector<MemoryCase> kCases = {
      {"EqualLayers", std::vector<std::vector<std::int64_t>>(12, {300, 400})},
      {"LayersWithBiases", {{500, 512}, {512}, {512, 512}, {512}, {512, 512}, {512}, {512, 512}, {10}}},
      {"ManySmall", std::vector<std::vector<std::int64_t>>(200, {33, 61})},
      {"SmallBuckets", std::vector<std::vector<std::int64_t>>(12, {300, 400}), 0.5},
      {"TwoEqual", {{700, 800}, {700, 800}}},
      {"ThreeEqual", {{700, 800}, {700, 800}, {700, 800}}},
      {"OneLarge", {{64}, {1200, 1000}, {64, 64}, {64}}},
      {"OneAlone", {{1000, 999}}},
      {"LargeLast", {{100, 1000}, {100, 1000}, {100, 1000}, {900, 1000}}},
  };
  return kCases;
}

std::vector<std::int64_t> bytes_of(const MemoryCase& tried) {
  std::vector<std::int64_t> bytes;
  for (const auto& shape : tried.shapes)
    bytes.push_back(4 * std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
  return bytes;
}

std::int64_t sum_of(const std::vector<std::int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

/// Padding to cache lines between parameters, and at the ends of parts and buckets.
std::int64_t padding_of(const MemoryCase& tried, int ranks) {
  return static_cast<std::int64_t>(tried.shapes.size()) * 64 * (2 + ranks);
}

DataParallelOptions options_of(const MemoryCase& tried) {
  return {.bucket_mib = tried.bucket_mib, .first_bucket_mib = std::min(1.0, tried.bucket_mib)};
}

/// Bytes of gradients that each rank holds after a step, before they are dropped.
std::int64_t held_by_a_rank(const MemoryCase& tried, ZeroStage stage, int ranks, int microbatches) {
  count_allocations();
  const auto gradients = [] { return MemoryLedger::of_process().now()[MemoryKind::kGradients]; };
  const std::int64_t before = gradients();
  std::int64_t held = 0;
  const auto train = [&](Context& context) {
    const test::Own own{.forward =
                            [](const at::Tensor& x, const std::vector<at::Tensor>& parameters) {
                              at::Tensor sum = x.sum().reshape({1});
                              for (const at::Tensor& each : parameters) sum = sum + each.square().sum();
                              return sum;
                            },
                        .shapes = tried.shapes};
    Pipeline pipe(context, {.pipeline = context.self(), .data = context.world()}, own(),
                  {.num_microbatches = 1,
                   .program = schedule::data_parallel(microbatches),
                   .data_parallel = options_of(tried),
                   .zero = {.stage = stage}});
    const at::Tensor rows = at::zeros({microbatches, 1});
    for (int step = 0; step < 3; ++step) {
      pipe.zero_grad();
      pipe.step(rows, rows, [](const at::Tensor& output, const at::Tensor&) { return output.sum(); });
    }
    context.world().barrier();
    if (context.is_main()) held = gradients() - before;
    context.world().barrier();
  };
  run_ranks_as_threads(ranks, train, {.backend = "threads", .timeout_s = 60});
  return held / ranks;
}

class ZeroMemory : public testing::TestWithParam<MemoryCase> {};

INSTANTIATE_TEST_SUITE_P(Every, ZeroMemory, testing::ValuesIn(memory_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(ZeroMemory, ShardedGradientsTakeNoMoreThanWhole) {
  for (const int ranks : {2, 3, 4}) {
    const std::int64_t all = sum_of(bytes_of(GetParam())), padding = padding_of(GetParam(), ranks);
    for (const int microbatches : {1, 3}) {
      const std::int64_t whole = held_by_a_rank(GetParam(), ZeroStage::kNone, ranks, microbatches);
      EXPECT_GE(whole, all);
      for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kParameters}) {
        EXPECT_LE(held_by_a_rank(GetParam(), stage, ranks, microbatches), whole + padding)
            << "zero " << static_cast<int>(stage) << ", " << ranks << " ranks, " << microbatches;
      }
    }
  }
}

TEST_P(ZeroMemory, IsThatOfTheForecast) {
  for (const int ranks : {2, 3, 4}) {
    const std::vector<std::int64_t> bytes = bytes_of(GetParam());
    const std::int64_t buckets = bytes_of_buckets({bytes}, ranks, options_of(GetParam()));
    const bool is_whole = bucket_limits(bytes, ranks).at_a_time == BucketLimits::kAll;
    const std::int64_t told = buckets + (is_whole ? 0 : sum_of(bytes) / ranks);
    const std::int64_t held = held_by_a_rank(GetParam(), ZeroStage::kGradients, ranks, 1);
    EXPECT_NEAR(static_cast<double>(held), static_cast<double>(told), padding_of(GetParam(), ranks)) << ranks;
  }
}

TEST(BucketLimits, LeaveTwoBucketsWherePossible) {
  constexpr std::int64_t kMib = 1 << 20;
  const auto limits = [](const std::vector<std::int64_t>& bytes, int ranks) {
    return bucket_limits(bytes, ranks);
  };
  const std::vector<std::int64_t> equal(8, kMib);
  EXPECT_EQ(limits(equal, 2).at_a_time, 2U) << "one is reduced while the next is filled";
  EXPECT_EQ(limits(equal, 2).most_bytes, 2 * kMib);
  EXPECT_EQ(limits(equal, 4).most_bytes, 3 * kMib);
  EXPECT_EQ(limits({kMib, kMib, kMib}, 2).at_a_time, 1U);
  EXPECT_EQ(limits({kMib, kMib, kMib}, 4).at_a_time, 2U);
  EXPECT_EQ(limits({5 * kMib, kMib}, 2).at_a_time, BucketLimits::kAll);
  EXPECT_EQ(limits({5 * kMib, kMib, kMib}, 4).at_a_time, 1U);
  EXPECT_EQ(limits({kMib / 2, kMib / 4}, 2).at_a_time, 2U) << "of small models all is small";
}

}  // namespace
}  // namespace trireme::parallel
