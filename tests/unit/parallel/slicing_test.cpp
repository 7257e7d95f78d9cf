// Gradients in slices, ordered by the need of the next forward.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>

#include "tests/unit/parallel/known_gradients.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/data/slicing_hook.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using testing::AllOf;
using testing::HasSubstr;

constexpr SlicingOptions kSmall{.slice_bytes = 1000};  // 250 numbers: several slices per bucket
const comm::ContextOptions kSoon{.timeout_s = 20};     // no test runs into this timeout

DataParallelOptions in_slices(ReduceScale scale, double bucket_mib = 1e-4) {
  return {.bucket_mib = bucket_mib,
          .first_bucket_mib = bucket_mib,
          .scale = scale,
          .hook = make_slicing_hook(kSmall)};
}

class Slices : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Slices, testing::Values(2, 3, 4));

TEST_P(Slices, HaveBitsOfWholeBuckets) {
  using Gradients = std::vector<std::map<std::string, at::Tensor>>;
  const auto reduced = [&](const std::function<DataParallelOptions()>& options) {
    Gradients found;
    run_ranks_as_threads(
        GetParam(),
        [&](Context& context) {
          const test::Parameters parameters;
          DistributedDataParallel ddp(context.world(),
                                      Replica{.parameters = parameters.tensors, .buffers = {}}, options());
          for (int step = 0; step < 3; ++step) {
            ddp.zero_grad();
            parameters.backward(context.rank(), step);
            if (context.rank() != GetParam() - 1) continue;
            found.emplace_back();
            for (const auto& [name, tensor] : parameters.tensors) found.back()[name] = tensor.grad().clone();
          }
        },
        kSoon);
    return found;
  };
  for (const ReduceScale scale : {ReduceScale::kMean, ReduceScale::kSum}) {
    for (const double bucket_mib : {1e-3, 25.0}) {
      const Gradients expected = reduced([=] { return DataParallelOptions{.scale = scale}; }),
                      got = reduced([=] { return in_slices(scale, bucket_mib); });
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t step = 0; step < got.size(); ++step) {
        for (const auto& [name, gradient] : expected[step])
          EXPECT_TRUE(at::equal(got[step].at(name), gradient)) << name << ", step " << step;
      }
    }
  }
}

/// Two buckets, the first of which is large and needed last.
struct TwoBuckets {
  explicit TwoBuckets(const comm::Group& group)
      : large(bucket_of(group, "last", 1 << 18)), small(bucket_of(group, "first", 64)) {}
  static GradientBucket bucket_of(const comm::Group& group, const char* name, std::int64_t numel) {
    GradientBucket bucket{.flat = group.allocate(numel, at::kFloat), .flag = {}, .gradients = {}};
    bucket.flat.fill_(1);
    bucket.gradients.emplace_back(name, bucket.flat);
    return bucket;
  }
  GradientBucket large, small;
};
const optim::NamedTensors kModel = {{"first", at::Tensor(at::zeros({1}))},
                                    {"last", at::Tensor(at::zeros({1}))}};

TEST(Slicing, UrgentSliceArrivesBeforeEarlierStart) {
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        comm::Group group = context.world();
        TwoBuckets buckets(group);
        const auto hook = make_slicing_hook({.slice_bytes = 1 << 10});
        hook->prepare(group, kModel);
        const auto large = hook->start(group, buckets.large, ReduceScale::kSum);
        const auto small = hook->start(group, buckets.small, ReduceScale::kSum);
        std::atomic<int> place = 0;
        int place_of_large = 0;
        std::thread waits([&] {
          large();
          place_of_large = ++place;
        });
        small();
        EXPECT_EQ(++place, 1);
        waits.join();
        EXPECT_EQ(place_of_large, 2);
        EXPECT_TRUE(buckets.large.flat.eq(2).all().item<bool>());
        EXPECT_TRUE(buckets.small.flat.eq(2).all().item<bool>());
      },
      kSoon);
}

TEST(Slicing, AutomaticSizeIsCommonAndSumsMeanwhile) {
  std::vector<std::string> found(3);
  run_ranks_as_threads(
      3,
      [&](Context& context) {
        comm::Group group = context.world();
        TwoBuckets buckets(group);
        const auto hook = make_slicing_hook({.slice_bytes = 0});
        hook->prepare(group, kModel);
        for (int step = 0; step < 50; ++step) {
          EXPECT_EQ(hook->found().empty(), step <= 3 + 5 * 7 + 1) << step;
          for (GradientBucket* bucket : {&buckets.large, &buckets.small}) bucket->flat.fill_(step);
          const auto large = hook->start(group, buckets.large, ReduceScale::kSum);
          const auto small = hook->start(group, buckets.small, ReduceScale::kSum);
          small();
          large();
          EXPECT_TRUE(buckets.large.flat.eq(3 * step).all().item<bool>()) << step;
          EXPECT_TRUE(buckets.small.flat.eq(3 * step).all().item<bool>()) << step;
        }
        found[static_cast<std::size_t>(context.rank())] = hook->found();
      },
      kSoon);
  EXPECT_THAT(found[0], HasSubstr("KiB are fastest"));
  EXPECT_THAT(found, testing::Each(found[0]));
}

TEST(Slicing, LeavingRankEndsSlicesByName) {
  std::atomic<bool> named = false;
  EXPECT_THROW(run_ranks_as_threads(
                   3,
                   [&](Context& context) {
                     comm::Group group = context.world();
                     TwoBuckets buckets(group);
                     const auto hook = make_slicing_hook({.slice_bytes = 1 << 10});
                     hook->prepare(group, kModel);
                     try {
                       // Rank 1 may have its sum, and leave, before the other ranks have theirs.
                       const auto small = hook->start(group, buckets.small, ReduceScale::kSum);
                       small();
                       if (context.rank() == 1) {
                         group.fail("out of luck");
                         throw InvalidArgument("out of luck");
                       }
                       const auto large = hook->start(group, buckets.large, ReduceScale::kSum);
                       large();
                     } catch (const CommError& error) {
                       if (context.rank() == 0)
                         named = std::string(error.what()).find("rank 1") != std::string::npos;
                       throw;
                     }
                   },
                   kSoon),
               Error);
  EXPECT_TRUE(named);
}

TEST(Slicing, RejectsGradientsOfAnotherSet) {
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        const auto hook = make_slicing_hook();
        hook->prepare(context.world(), kModel);
        EXPECT_THAT([&] { hook->prepare(context.world(), kModel); },
                    testing::ThrowsMessage<InvalidArgument>(
                        AllOf(HasSubstr("group 'world'"), HasSubstr("make_slicing_hook()"))));
      },
      kSoon);
  EXPECT_THAT([] { make_slicing_hook({.slice_bytes = -1}); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("slice_bytes = -1")));
}

}  // namespace
}  // namespace trireme::parallel
