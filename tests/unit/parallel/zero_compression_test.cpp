// Compression of sharded gradients. The results equal a serial program of the rule, bit by bit. Error
// feedback loses nothing, non-finite values stay visible, and second uses work.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "tests/support/codecs.h"
#include "tests/unit/parallel/sharded_steps.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/context.h"
#include "trireme/compress/codec.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"
#include "trireme/parallel/zero/shard_hook.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::floats_of;
using test::gradient_of;
using test::kEncoded;
using test::KnownLayers;
using test::KnownStage;
using test::kPlain;
using test::reduce_in_shards;
using test::Reduced;
using test::RunOfRank;
using test::shape_of;
using test::shard_options;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// The rule: for every owner, each rank encodes its run of the gradient plus its residual. The owner adds the
/// decoded values in rank order.
class SerialRule {
 public:
  SerialRule(const CompressionOptions& options, const std::string& name, std::vector<RunOfRank> runs)
      : options_(options), name_(name), codec_(*compress::codec(options.name)), runs_(std::move(runs)) {
    for (std::size_t rank = 0; rank < runs_.size(); ++rank)
      residuals_.push_back(at::zeros({c10::multiply_integers(shape_of(name))}));
  }
  /// The sum of the next gradients, by rank.
  at::Tensor sum(const std::vector<at::Tensor>& gradients) {
    at::Tensor sum = at::zeros_like(residuals_[0]);
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      at::Tensor sent = gradients[rank].flatten();
      if (codec_.leaves_out()) sent = residuals_[rank].add_(sent);
      Random of_gradient(options_.seed, Random::key_of(name_), draws_, static_cast<int>(rank));
      Random of_owner(of_gradient.bits());
      for (const RunOfRank& run : runs_) {
        const compress::Codec::Options how{.fraction = options_.fraction, .seed = of_owner.bits()};
        if (run.numel == 0) continue;
        const std::span<float> values = floats_of(sent.narrow(0, run.begin, run.numel));
        std::vector<std::byte> bytes(codec_.most_bytes(values.size(), how));
        bytes.resize(codec_.encode(values, how, bytes));
        codec_.add(bytes, floats_of(sum.narrow(0, run.begin, run.numel)));
        if (codec_.leaves_out()) codec_.take_out(bytes, values);
      }
    }
    ++draws_;
    return sum;
  }
  const std::vector<at::Tensor>& residuals() const { return residuals_; }

 private:
  const CompressionOptions options_;
  const std::string name_;
  const compress::Codec& codec_;
  const std::vector<RunOfRank> runs_;
  std::vector<at::Tensor> residuals_;
  std::int64_t draws_ = 0;
};

at::Tensor kept_of(const HookState& state, const std::string& name) {
  for (const auto* list : {&state.own, &state.common}) {
    for (const auto& [known, tensor] : *list) {
      if (known == name) return tensor;
    }
  }
  return {};
}

class ZeroCompression : public testing::TestWithParam<std::string> {};
class ZeroErrorFeedback : public ZeroCompression {};
/// Compressions of runs, and of whole gradients.
class AnyZeroCompression : public ZeroCompression {};
INSTANTIATE_TEST_SUITE_P(Table, ZeroCompression, testing::ValuesIn(test::all_codecs()), test::name_of_codec);
std::vector<std::string> names_but_none() {
  std::vector<std::string> names = shard_hook_names();
  std::erase(names, "none");
  return names;
}
INSTANTIATE_TEST_SUITE_P(Table, AnyZeroCompression, testing::ValuesIn(names_but_none()), test::name_of_codec);
INSTANTIATE_TEST_SUITE_P(Table, ZeroErrorFeedback, testing::ValuesIn(test::codecs_that_leave_out()),
                         test::name_of_codec);

TEST_P(ZeroCompression, EqualsASerialProgramOfItsRule) {
  const CompressionOptions options = shard_options(GetParam());
  for (const int ranks : {2, 3, 4}) {
    for (const ReduceScale scale : {ReduceScale::kSum, ReduceScale::kMean}) {
      const Reduced found = reduce_in_shards(options, {.ranks = ranks, .scale = scale});
      for (const std::string& name : kEncoded) {
        SerialRule rule(options, name, found.runs.at(name));
        for (int step = 0; step < 3; ++step) {
          std::vector<at::Tensor> gradients;
          for (int rank = 0; rank < ranks; ++rank) gradients.push_back(gradient_of(name, rank, step, 0));
          at::Tensor expected = rule.sum(gradients);
          if (scale == ReduceScale::kMean) expected.div_(ranks);
          EXPECT_TRUE(at::equal(found.steps[static_cast<std::size_t>(step)].at(name).flatten(), expected))
              << name << " of " << ranks << " ranks in step " << step;
        }
      }
    }
  }
}

/// Up to rounding: gloo adds uncompressed values in an order of its own.
TEST_P(ZeroCompression, VectorsAndSmallParametersStayUncompressed) {
  const Reduced found = reduce_in_shards(shard_options(GetParam()), {.ranks = 3, .end = 1});
  for (const std::string& name : kPlain) {
    at::Tensor sum = at::zeros(shape_of(name));
    for (int rank = 0; rank < 3; ++rank) sum += gradient_of(name, rank, 0, 0);
    EXPECT_TRUE(found.steps[0].at(name).allclose(sum, 1e-6, 1e-6)) << name;
  }
}

/// Stages 2 and 3 reduce each micro-batch. Stage 1 reduces the sum of the micro-batches.
TEST_P(ZeroCompression, MicroBatchesFollowRulePerReduction) {
  const CompressionOptions options = shard_options(GetParam());
  for (const ZeroStage stage : {ZeroStage::kOptimizer, ZeroStage::kGradients, ZeroStage::kParameters}) {
    const Reduced found = reduce_in_shards(options, {.stage = stage, .microbatches = 2});
    for (const std::string& name : kEncoded) {
      SerialRule rule(options, name, found.runs.at(name));
      for (int step = 0; step < 3; ++step) {
        std::vector<at::Tensor> first, second, both;
        for (int rank = 0; rank < 2; ++rank) {
          first.push_back(gradient_of(name, rank, step, 0) / 2);
          second.push_back(gradient_of(name, rank, step, 1) / 2);
          both.push_back(first.back() + second.back());
        }
        at::Tensor expected;
        if (stage == ZeroStage::kOptimizer) {
          expected = rule.sum(both);
        } else {
          expected = rule.sum(first);
          expected += rule.sum(second);
        }
        EXPECT_TRUE(at::equal(found.steps[static_cast<std::size_t>(step)].at(name).flatten(), expected))
            << name << ", stage " << static_cast<int>(stage) << ", step " << step;
      }
    }
  }
}

/// Ranks compress alike with and without shared memory.
TEST_P(ZeroCompression, HasTheSameBitsOverEveryBackend) {
  const CompressionOptions options = shard_options(GetParam());
  const Reduced expected = reduce_in_shards(options, {.ranks = 3});
  for (const char* backend : {"threads", "shm"}) {
    const Reduced found = reduce_in_shards(options, {.ranks = 3, .backend = backend});
    for (std::size_t step = 0; step < 3; ++step) {
      for (const std::string& name : kEncoded)
        EXPECT_TRUE(at::equal(found.steps[step].at(name), expected.steps[step].at(name))) << name << backend;
    }
  }
}

/// The sum of the received gradients and the residuals equals the sum of the ranks' gradients.
TEST_P(ZeroErrorFeedback, LosesNothing) {
  constexpr int kSteps = 12;
  for (const int ranks : {2, 3}) {
    const Reduced found = reduce_in_shards(shard_options(GetParam()), {.ranks = ranks, .end = kSteps});
    for (const std::string& name : kEncoded) {
      at::Tensor arrived = at::zeros(shape_of(name)), given = at::zeros(shape_of(name));
      for (int step = 0; step < kSteps; ++step) {
        arrived += found.steps[static_cast<std::size_t>(step)].at(name);
        for (int rank = 0; rank < ranks; ++rank) given += gradient_of(name, rank, step, 0);
      }
      for (const HookState& state : found.kept)
        arrived += kept_of(state, "residual/" + name).view(shape_of(name));
      EXPECT_LE((arrived - given).abs().max().item<double>(), 5e-5) << name << ", " << ranks;
    }
  }
}

TEST_P(AnyZeroCompression, ContinuesFromStateWithSameBits) {
  const CompressionOptions options = shard_options(GetParam());
  const Reduced whole = reduce_in_shards(options, {.ranks = 3, .end = 5}),
                part = reduce_in_shards(options, {.ranks = 3});
  const Reduced rest = reduce_in_shards(options, {.ranks = 3, .first = 3, .end = 5, .go_on_from = &part});
  for (std::size_t step = 0; step < 2; ++step) {
    for (const std::string& name : kEncoded)
      EXPECT_TRUE(at::equal(rest.steps[step].at(name), whole.steps[step + 3].at(name))) << name;
  }
}

TEST_P(AnyZeroCompression, StepFailedBeforeReductionCountsNot) {
  const CompressionOptions options = shard_options(GetParam());
  const Reduced expected = reduce_in_shards(options), found = reduce_in_shards(options, {.abandoned = 1});
  for (std::size_t step = 0; step < 3; ++step) {
    for (const std::string& name : kEncoded)
      EXPECT_TRUE(at::equal(found.steps[step].at(name), expected.steps[step].at(name))) << name;
  }
}

TEST_P(AnyZeroCompression, ShowsNonFiniteAndContinuesFromResidual) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const auto spoil = [bad](const std::string& name, int rank, int step, at::Tensor& gradient) {
      if (name == "p3" && rank == 1 && step == 1) gradient[7][70] = bad;
    };
    const Reduced found = reduce_in_shards(shard_options(GetParam()), {.ranks = 3, .spoil = spoil});
    EXPECT_TRUE(found.steps[1].at("p3").isnan().all().item<bool>()) << "of all owners";
    EXPECT_TRUE(found.steps[1].at("p2").isfinite().all().item<bool>());
    EXPECT_TRUE(found.steps[2].at("p3").isfinite().all().item<bool>());
    const at::Tensor residual = kept_of(found.kept[1], "residual/p3");
    if (!residual.defined()) continue;
    const Reduced without = reduce_in_shards(shard_options(GetParam()), {.ranks = 3, .end = 1});
    EXPECT_TRUE(residual.isfinite().all().item<bool>());
    EXPECT_GT(kept_of(without.kept[1], "residual/p3").abs().max().item<double>(), 0);
  }
}

TEST_P(AnyZeroCompression, OthersLearnOfARankThatFailed) {
  test::expect_others_are_told(shard_options(GetParam()), {.ranks = 3});
}

/// The same sums in a user-defined loop, layer by layer.
TEST_P(AnyZeroCompression, CustomLoopMatchesPipeline) {
  const CompressionOptions options = shard_options(GetParam());
  const Reduced expected =
      reduce_in_shards(options, {.stage = ZeroStage::kParameters, .scale = ReduceScale::kMean});
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        KnownLayers known{.rank = context.rank(), .setting = {}};
        FullyShardedDataParallel sharded(
            context, known.make(),
            {.data_parallel = {.first_bucket_mib = 25, .hook = make_shard_hook(options)}});
        for (; known.step < 3; ++known.step) {
          known.microbatch = 0;
          sharded.zero_grad();
          sharded.forward(at::zeros({1, 1})).at(0).sum().backward();
          for (const auto& [name, tensor] : sharded.parameters()) {
            if (name != "p2" && name != "p3") continue;
            const at::Tensor sum = expected.steps[static_cast<std::size_t>(known.step)].at(name).flatten();
            EXPECT_TRUE(at::equal(tensor.grad().flatten(),
                                  sum.narrow(0, sharded.pieces().at(name).begin, tensor.numel())))
                << name << " in step " << known.step;
          }
        }
      },
      {.backend = "gloo", .timeout_s = 20});
}

/// (n - 1) / n of the encoded bytes, plus some bytes for each run, and of the uncompressed bytes.
TEST(ZeroCompressionBytes, AreAShareOfTheEncodedOnes) {
  const std::size_t large = 24 * 75 + 61 * 101, small = 60 + 20;
  std::map<std::string, double> encoded_bytes = {{"none", 4.0 * large}};
  for (const std::string& name : test::all_codecs()) {
    const double fraction = shard_options(name).fraction;
    encoded_bytes[name] =
        static_cast<double>(compress::codec(name)->most_bytes(large, {.fraction = fraction}));
  }
  for (const auto& [name, bytes] : encoded_bytes) {
    for (const int ranks : {2, 3, 4}) {
      const double share = (ranks - 1.0) / ranks, expected = share * (bytes + 4.0 * small);
      const auto sent =
          static_cast<double>(reduce_in_shards(shard_options(name), {.ranks = ranks, .end = 1}).sent[0]);
      // Each run has a header, a partly filled scale, and the end of a part. Parts begin at cache lines.
      EXPECT_NEAR(sent, expected, 64 * ranks * 4) << name << ", " << ranks << " ranks";
    }
  }
}

TEST(ZeroCompressionOptions, DifferencesBetweenRanksAreNamedBeforeSteps) {
  run_ranks_as_threads(2, [](Context& context) {
    const CompressionOptions options = shard_options(context.rank() == 0 ? "bf16" : "int8");
    EXPECT_THAT([&] { KnownStage(context, options, {}); },
                ThrowsMessage<CommError>(testing::AllOf(HasSubstr("bf16 of shards"),
                                                        HasSubstr("int8 of shards"), HasSubstr("rank 1"))));
  });
}

TEST(ZeroCompressionOptions, RejectsWholeMomentumWithAlternatives) {
  EXPECT_THAT([] { make_shard_hook({.name = "one-bit", .warmup_steps = 5}); },
              ThrowsMessage<InvalidArgument>(testing::AllOf(HasSubstr("one-bit"), HasSubstr("power-sgd"))));
  EXPECT_THAT([] { make_shard_hook({.name = "dgc", .clip_norm = 1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("found a clip_norm of 1")));
}

TEST(ZeroCompressionOptions, AHookForWholeGradientsIsRejected) {
  run_ranks_as_threads(2, [](Context& context) {
    const DataParallelOptions reduction{.hook = make_comm_hook("int8")};
    const test::Own own{
        .forward = [](const at::Tensor& x, const std::vector<at::Tensor>& p) { return x.mm(p[0]); },
        .shapes = {{64, 64}}};
    EXPECT_THAT(
        [&] {
          Pipeline(context, {.pipeline = context.self(), .data = context.world()}, own(),
                   {.program = schedule::data_parallel(1),
                    .data_parallel = reduction,
                    .zero = {.stage = ZeroStage::kGradients}});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("make_shard_hook()")));
  });
}

TEST(ZeroCompressionOptions, RejectsOtherTypesThanF32ByName) {
  run_ranks_as_threads(2, [](Context& context) {
    const test::Own own{
        .forward = [](const at::Tensor& x, const std::vector<at::Tensor>& p) { return x.mm(p[0]); },
        .shapes = {{64, 64}}};
    std::vector<model::Layer> layers = own();
    layers[0].parameters[0].second.set_data(at::zeros({64, 64}, at::kDouble));
    EXPECT_THAT(
        [&] {
          Pipeline(context, {.pipeline = context.self(), .data = context.world()}, layers,
                   {.program = schedule::data_parallel(1),
                    .data_parallel = {.hook = make_shard_hook(shard_options("int8"))},
                    .zero = {.stage = ZeroStage::kGradients}});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("'p0' is Double")));
  });
}

}  // namespace
}  // namespace trireme::parallel
