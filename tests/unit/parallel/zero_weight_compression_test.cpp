// Compression of gathered weights. Every rank computes with the decoded values of the owners' exact weights,
// bit by bit, and updates stay exact.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "tests/unit/parallel/sharded_steps.h"
#include "trireme/compress/nearest.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::KnownLayers;
using test::KnownStage;
using test::kShapes;
using test::RunOfRank;
using test::ShardSetting;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct GatherCase {
  const char* weights = "int8";
  ZeroStage stage = ZeroStage::kParameters;
};

std::vector<GatherCase> gather_cases() {
  std::vector<GatherCase> all;
  for (const char* weights : {"bf16", "fp16", "int8"}) {
    for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kParameters})
      all.push_back({weights, stage});
  }
  return all;
}

class ZeroWeights : public testing::TestWithParam<GatherCase> {};
INSTANTIATE_TEST_SUITE_P(Every, ZeroWeights, testing::ValuesIn(gather_cases()), [](const auto& test) {
  return text(test.param.weights, "_stage", static_cast<int>(test.param.stage));
});

/// The weights that ranks update before each step, joined, and the weights that each rank computes with.
struct Seen {
  std::vector<std::vector<at::Tensor>> exact;            ///< by step and parameter
  std::vector<std::vector<RunOfRank>> runs;              ///< by parameter and rank
  std::vector<std::vector<std::vector<at::Tensor>>> by;  ///< by rank, step and parameter
};

constexpr int kSteps = 3;

Seen look(ShardSetting setting, const char* gradients = "none") {
  const auto ranks = static_cast<std::size_t>(setting.ranks);
  Seen seen{.exact = {},
            .runs = std::vector<std::vector<RunOfRank>>(kShapes.size(), std::vector<RunOfRank>(ranks)),
            .by = std::vector<std::vector<std::vector<at::Tensor>>>(
                ranks, std::vector<std::vector<at::Tensor>>(kSteps))};
  for (int step = 0; step < kSteps; ++step) {
    seen.exact.emplace_back();
    for (const auto& shape : kShapes) seen.exact.back().push_back(at::zeros(shape));
  }
  setting.sees = [&](int rank, int step, const std::vector<at::Tensor>& parameters) {
    auto& mine = seen.by[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
    mine.clear();
    for (const at::Tensor& parameter : parameters) mine.push_back(parameter.detach().clone());
  };
  std::mutex mutex;
  run_ranks_as_threads(
      setting.ranks,
      [&](Context& context) {
        KnownStage stage(context, test::shard_options(gradients), setting);
        for (int step = 0; step < kSteps; ++step) {
          {
            const std::lock_guard lock(mutex);
            for (const auto& [name, tensor] : stage.pipe().parameters()) {
              const auto number = static_cast<std::size_t>(name.back() - '0');
              const std::int64_t begin = stage.pipe().pieces().at(name).begin;
              seen.runs[number][static_cast<std::size_t>(context.rank())] = {begin, tensor.numel()};
              seen.exact[static_cast<std::size_t>(step)][number]
                  .view({-1})
                  .narrow(0, begin, tensor.numel())
                  .copy_(tensor.detach().view({-1}));
            }
          }
          if (step == setting.abandoned) {
            EXPECT_THROW(stage.step(step, /*fails=*/true), InvalidArgument);
          }
          stage.step(step);
        }
      },
      {.backend = setting.backend, .timeout_s = 20});
  return seen;
}

/// The rule: each rank's run of a parameter is encoded by itself.
at::Tensor as_gathered(const char* weights, const at::Tensor& exact, const std::vector<RunOfRank>& runs) {
  const compress::Codec& codec = *compress::nearest_codec(weights);
  at::Tensor decoded = at::empty_like(exact);
  const auto part = [](const at::Tensor& of, const RunOfRank& run) {
    const at::Tensor narrow = of.view({-1}).narrow(0, run.begin, run.numel);
    return std::span(narrow.data_ptr<float>(), static_cast<std::size_t>(run.numel));
  };
  for (const RunOfRank& run : runs) {
    if (run.numel == 0) continue;
    std::vector<std::byte> bytes(codec.most_bytes(static_cast<std::size_t>(run.numel), {}));
    bytes.resize(codec.encode(part(exact, run), {}, bytes));
    codec.decode(bytes, part(decoded, run));
  }
  return decoded;
}

bool is_large(std::size_t number) { return number >= 2; }

TEST_P(ZeroWeights, AreEverywhereAsEncodedByOwners) {
  for (const int ranks : {2, 3, 4}) {
    const Seen seen =
        look({.ranks = ranks, .stage = GetParam().stage, .weights = GetParam().weights, .rate = 0.1F});
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (std::size_t number = 0; number < kShapes.size(); ++number) {
        const at::Tensor& exact = seen.exact[step][number];
        const at::Tensor expected =
            is_large(number) ? as_gathered(GetParam().weights, exact, seen.runs[number]) : exact;
        EXPECT_EQ(at::equal(expected, exact), !is_large(number)) << "rounding is seen";
        for (const auto& by_step : seen.by)
          EXPECT_TRUE(at::equal(by_step[step][number], expected)) << "p" << number << " in step " << step;
      }
    }
  }
}

/// The gradients here do not depend on the weights.
TEST_P(ZeroWeights, AreUpdatedExactly) {
  const ShardSetting plain{.stage = GetParam().stage, .rate = 0.1F};
  ShardSetting rounded = plain;
  rounded.weights = GetParam().weights;
  const Seen expected = look(plain), found = look(rounded);
  EXPECT_FALSE(at::equal(expected.exact[0][3], expected.exact[2][3])) << "there are updates";
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (std::size_t number = 0; number < kShapes.size(); ++number)
      EXPECT_TRUE(at::equal(found.exact[step][number], expected.exact[step][number])) << number;
  }
}

TEST_P(ZeroWeights, AreGatheredAgainAfterFailedStep) {
  const ShardSetting whole{
      .ranks = 3, .stage = GetParam().stage, .weights = GetParam().weights, .rate = 0.1F};
  ShardSetting with_error = whole;
  with_error.abandoned = 1;
  const Seen expected = look(whole, "int8"), found = look(with_error, "int8");
  for (std::size_t number = 0; number < kShapes.size(); ++number)
    EXPECT_TRUE(at::equal(found.by[1][2][number], expected.by[1][2][number])) << number;
}

TEST_P(ZeroWeights, InOneMemoryAreNotRounded) {
  for (const char* backend : {"threads", "shm"}) {
    const Seen seen =
        look({.stage = GetParam().stage, .backend = backend, .weights = GetParam().weights, .rate = 0.1F});
    for (std::size_t number = 0; number < kShapes.size(); ++number) {
      for (const auto& by_step : seen.by)
        EXPECT_TRUE(at::equal(by_step[2][number], seen.exact[2][number])) << number;
    }
  }
}

TEST_P(ZeroWeights, ThatAreNotFiniteAreShown) {
  run_ranks_as_threads(2,
                       [&](Context& context) {
                         std::vector<at::Tensor> seen;
                         const auto sees = [&](int, int, const std::vector<at::Tensor>& parameters) {
                           seen.clear();
                           for (const at::Tensor& parameter : parameters)
                             seen.push_back(parameter.detach().clone());
                         };
                         KnownStage stage(
                             context, test::shard_options("none"),
                             {.stage = GetParam().stage, .weights = GetParam().weights, .sees = sees});
                         for (const auto& [name, piece] : stage.pipe().parameters()) {
                           const at::NoGradGuard no_grad;
                           if (name == "p3" && context.rank() == 1)
                             piece.view({-1})[5] = std::numeric_limits<float>::quiet_NaN();
                         }
                         stage.pipe().weights_changed();
                         stage.step(0);
                         EXPECT_EQ(seen.at(3).isnan().sum().item<std::int64_t>(), 1);
                         EXPECT_TRUE(seen.at(2).isfinite().all().item<bool>());
                       },
                       {.backend = "gloo", .timeout_s = 20});
}

/// (n - 1) / n of the encoded bytes, plus some bytes for each run, and of the uncompressed bytes, for each
/// gathering. The initial weights are exact on all ranks. They are gathered where ranks compute with other
/// values.
TEST(ZeroWeightBytes, AreAShareOfTheEncodedOnes) {
  const double frozen = 64 * 64, large = 24 * 75 + 61 * 101 + frozen, small = 60 + 20;
  const std::map<std::string, double> per_element = {
      {"none", 4}, {"bf16", 2}, {"fp16", 2}, {"int8", 1 + 4 / 512.0}};
  for (const auto& [name, bytes] : per_element) {
    for (const int ranks : {2, 3}) {
      const double share = (ranks - 1.0) / ranks, gatherings = name == "none" ? 1 : 2;
      const double expected =
          share * (2 * 4 * (large - frozen + small) + gatherings * (bytes * large + 4 * small));
      const std::int64_t sent = test::reduce_in_shards(test::shard_options("none"),
                                                       {.ranks = ranks, .end = 2, .weights = name.c_str()})
                                    .sent[0];
      EXPECT_NEAR(static_cast<double>(sent), expected, 2 * 64 * ranks * 6) << name << ", " << ranks;
    }
  }
}

TEST(ZeroWeightOptions, DifferencesBetweenRanksAreNamedBeforeSteps) {
  run_ranks_as_threads(2, [](Context& context) {
    const ShardSetting setting{.weights = context.rank() == 0 ? "none" : "int8"};
    EXPECT_THAT(
        [&] { KnownStage(context, test::shard_options("none"), setting); },
        ThrowsMessage<CommError>(testing::AllOf(HasSubstr("weights none"), HasSubstr("weights int8"))));
  });
}

TEST(ZeroWeightOptions, ThatRoundByChanceAreNone) {
  EXPECT_THAT([&] { make_shard_hook({}, "qsgd"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("'qsgd' that rounds to nearest")));
}

/// Layer by layer, forward and backward.
TEST(ZeroWeightsInALoopOfOnesOwn, AreThoseOfAPipeline) {
  const Seen expected = look({.weights = "int8", .rate = 0.1F});
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        std::vector<at::Tensor> seen;
        KnownLayers known{.rank = context.rank(), .setting = {.sees = [&](int, int, const auto& parameters) {
                                                    seen.clear();
                                                    for (const at::Tensor& each : parameters)
                                                      seen.push_back(each.detach().clone());
                                                  }}};
        FullyShardedDataParallel sharded(
            context, known.make(),
            {.data_parallel = {.first_bucket_mib = 25, .hook = make_shard_hook({}, "int8")}});
        sharded.forward(at::zeros({1, 1})).at(0).sum().backward();
        for (std::size_t number = 0; number < kShapes.size(); ++number)
          EXPECT_TRUE(at::equal(seen.at(number), expected.by[0][0][number])) << number;
      },
      {.backend = "gloo", .timeout_s = 20});
}

}  // namespace
}  // namespace trireme::parallel
