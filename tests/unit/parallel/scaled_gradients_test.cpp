// Compressed reductions with loss scaling. Received gradients and residuals are, bit by bit, those of
// unscaled gradients, for any scale of each step. A skipped step has no effect on later ones.

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "tests/support/compressions.h"
#include "tests/unit/parallel/sharded_steps.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/parallel/data/hook_state_copy.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::ByName;
using test::KnownStage;
using test::Parameters;
using test::ShardSetting;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Powers of two, because multiplying by them does not round.
constexpr std::array kScales = {1024.0, 1024.0, 0.25, 65536.0, 2.0};
constexpr int kScaledSteps = 5;

CompressionOptions scaled_options(const std::string& name) {
  CompressionOptions options = test::shard_options(name);
  options.warmup_steps = name == "dgc" ? 4 : 0;
  return options;
}

/// Received gradients, divided by their scales, and the state of the hooks, by rank.
struct Arrived {
  std::vector<std::vector<ByName>> steps;
  std::vector<HookState> kept;
};

Arrived reduce_scaled(const CompressionOptions& options, ShardSetting setting, bool is_scaled) {
  const auto scale_of = [is_scaled](int step) {
    return is_scaled ? kScales[static_cast<std::size_t>(step)] : 1.0;
  };
  setting.spoil = [scale_of](const std::string&, int, int step, at::Tensor& gradient) {
    gradient.mul_(scale_of(step));
  };
  const auto ranks = static_cast<std::size_t>(setting.ranks);
  Arrived all{.steps = std::vector<std::vector<ByName>>(ranks), .kept = std::vector<HookState>(ranks)};
  run_ranks_as_threads(setting.ranks,
                       [&](Context& context) {
                         const auto rank = static_cast<std::size_t>(context.rank());
                         if (!setting.hosts.empty()) context.world().state().parts.host_ids = setting.hosts;
                         KnownStage stage(context, options, setting);
                         for (int step = 0; step < kScaledSteps; ++step) {
                           if (is_scaled) stage.hook().set_gradient_scale(scale_of(step));
                           stage.step(step);
                           ByName& found = all.steps[rank].emplace_back();
                           for (const auto& [name, tensor] : stage.pipe().parameters()) {
                             if (tensor.grad().defined()) found[name] = tensor.grad() / scale_of(step);
                           }
                         }
                         all.kept[rank] = test::copy_of(stage.hook().state());
                       },
                       {.backend = setting.backend, .timeout_s = 60});
  return all;
}

void expect_same_state(const HookState& found, const HookState& expected) {
  ASSERT_EQ(found.own.size(), expected.own.size());
  ASSERT_EQ(found.common.size(), expected.common.size());
  ASSERT_EQ(found.pieces.size(), expected.pieces.size());
  for (std::size_t i = 0; i < found.own.size(); ++i)
    EXPECT_TRUE(at::equal(found.own[i].second, expected.own[i].second)) << found.own[i].first;
  for (std::size_t i = 0; i < found.common.size(); ++i)
    EXPECT_TRUE(at::equal(found.common[i].second, expected.common[i].second)) << found.common[i].first;
  for (std::size_t i = 0; i < found.pieces.size(); ++i)
    EXPECT_TRUE(at::equal(found.pieces[i].tensor, expected.pieces[i].tensor)) << found.pieces[i].name;
}

class ScaledGradients : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, ScaledGradients, testing::ValuesIn(test::lossy_gradient_compressions()),
                         test::name_of_codec);

TEST_P(ScaledGradients, ArriveAndAreKeptAsUnscaledOnes) {
  struct Case {
    const char* name;
    ShardSetting setting;
  };
  const test::Hosts pairs = {"a", "a", "b", "b"};
  for (const auto& [name, setting] :
       {Case{"replicas", {.ranks = 4, .stage = ZeroStage::kNone}},
        Case{"means", {.ranks = 3, .stage = ZeroStage::kNone, .scale = ReduceScale::kMean}},
        Case{"hosts", {.ranks = 4, .stage = ZeroStage::kNone, .hosts = pairs}},
        Case{"optimizer", {.ranks = 2, .stage = ZeroStage::kOptimizer}},
        Case{"gradients", {.ranks = 3, .stage = ZeroStage::kGradients, .scale = ReduceScale::kMean}},
        Case{"parameters", {.ranks = 2, .stage = ZeroStage::kParameters, .bucket_mib = 1e-4}},
        Case{"gradients by hosts", {.ranks = 4, .stage = ZeroStage::kGradients, .hosts = pairs}}}) {
    SCOPED_TRACE(name);
    const CompressionOptions options = scaled_options(GetParam());
    const Arrived expected = reduce_scaled(options, setting, /*is_scaled=*/false),
                  found = reduce_scaled(options, setting, /*is_scaled=*/true);
    for (std::size_t rank = 0; rank < expected.steps.size(); ++rank) {
      expect_same_state(found.kept[rank], expected.kept[rank]);
      for (std::size_t step = 0; step < expected.steps[rank].size(); ++step) {
        for (const auto& [parameter, gradient] : expected.steps[rank][step])
          EXPECT_TRUE(at::equal(found.steps[rank][step].at(parameter), gradient))
              << parameter << ", step " << step << ", rank " << rank;
      }
    }
  }
}

/// Replicas with an optimizer, which some compressions use.
struct ScaledReplica {
  ScaledReplica(Context& context, const CompressionOptions& options)
      : hook(make_comm_hook(options)),
        ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}}, {.hook = hook}),
        optimizer(optim::make_optimizer({.name = options.name == "one-bit" ? "adamw" : "sgd",
                                         .lr = 0.01,
                                         .momentum = 0.0,
                                         .variance_steps = options.name == "one-bit" ? 2 : 0},
                                        parameters.tensors)) {
    hook->attach_optimizer(optimizer->state());
  }
  void reduce(int rank, int step, double scale) {
    hook->set_gradient_scale(scale);
    ddp.zero_grad();
    at::Tensor loss = at::zeros({});
    for (const auto& [name, tensor] : parameters.tensors)
      loss = loss + (tensor * Parameters::gradient(name, tensor.sizes(), rank, step)).sum();
    (loss * scale).backward();
  }
  bool update(double scale) {
    if (!optim::unscale_gradients(parameters.tensors, scale)) return false;
    optimizer->step();
    return true;
  }
  ByName weights() const {
    ByName values;
    for (const auto& [name, tensor] : parameters.tensors) values[name] = tensor.detach().clone();
    return values;
  }
  const Parameters parameters;
  const std::shared_ptr<CommHook> hook;
  DistributedDataParallel ddp;
  const std::unique_ptr<optim::Optimizer> optimizer;
};

class ScaledSteps : public testing::TestWithParam<std::string> {
 protected:
  static CompressionOptions options() {
    if (GetParam() == "clipped dgc") {
      CompressionOptions clipped = scaled_options("dgc");
      clipped.clip_norm = 20;
      return clipped;
    }
    CompressionOptions options = scaled_options(GetParam());
    if (GetParam() == "one-bit") options.warmup_steps = 2;
    return options;
  }
};
std::vector<std::string> names_of_scaled_steps() {
  std::vector<std::string> names = test::lossy_compressions();
  names.insert(names.end(), {"bf16", "clipped dgc"});
  return names;
}
INSTANTIATE_TEST_SUITE_P(Table, ScaledSteps, testing::ValuesIn(names_of_scaled_steps()), test::name_of_codec);

/// One rank's gradient is not finite in step 2, whose scales are far too large.
TEST_P(ScaledSteps, MatchUnscaledStepsWithoutSkippedOnes) {
  constexpr int kRanks = 3;
  const auto trained = [&](bool is_scaled) {
    std::pair<std::vector<ByName>, std::vector<HookState>> all{kRanks, kRanks};
    run_ranks_as_threads(kRanks, [&](Context& context) {
      ScaledReplica replica(context, options());
      HookStateCopy before(replica.hook);
      for (int step = 0; step < kScaledSteps; ++step) {
        const double scale = is_scaled ? kScales[static_cast<std::size_t>(step)] : 1.0;
        before.take();
        if (is_scaled && step == 2) {
          const HookState kept = test::copy_of(replica.hook->state());
          replica.reduce(context.rank(), 9, context.rank() == 1 ? std::numeric_limits<float>::max() : 4.0);
          EXPECT_FALSE(replica.update(4.0));
          before.bring_back();
          expect_same_state(replica.hook->state(), kept);
        }
        replica.reduce(context.rank(), step, scale);
        EXPECT_TRUE(replica.update(scale));
      }
      const auto rank = static_cast<std::size_t>(context.rank());
      all.first[rank] = replica.weights();
      all.second[rank] = test::copy_of(replica.hook->state());
    });
    return all;
  };
  const auto expected = trained(false), found = trained(true);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    expect_same_state(found.second[rank], expected.second[rank]);
    for (const auto& [name, weights] : expected.first[rank])
      EXPECT_TRUE(at::equal(found.first[rank].at(name), weights)) << name << ", rank " << rank;
  }
}

TEST(GradientScale, HasToBeAboveZeroAndFinite) {
  for (const char* name : {"top-k", "power-sgd"}) {
    for (const double scale : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
      EXPECT_THAT([&] { make_comm_hook(name)->set_gradient_scale(scale); },
                  ThrowsMessage<InvalidArgument>(HasSubstr("a number above 0; found")));
    }
  }
}

TEST(HookStateCopies, AreNotRestoredIntoGrownState) {
  comm::run_ranks_as_threads(1, [](comm::Context& context) {
    const auto hook = make_comm_hook("top-k");
    comm::Group world = context.world();
    hook->prepare(world, {{"first", at::zeros({256, 256})}});
    HookStateCopy copy(hook);
    copy.take();
    hook->prepare(world, {{"second", at::zeros({256, 256})}});
    EXPECT_THROW(copy.bring_back(), InvalidArgument);
    copy.take();
    copy.bring_back();
  });
}

TEST(HookStateCopies, HaveToBeTakenFirst) {
  HookStateCopy copy(make_comm_hook("top-k"));
  EXPECT_THROW(copy.bring_back(), InvalidArgument);
}

}  // namespace
}  // namespace trireme::parallel
