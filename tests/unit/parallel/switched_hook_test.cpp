// A compression that is switched off and on between steps loses nothing, and is the uncompressed sum while it
// is off.
#include "trireme/parallel/data/switched_hook.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <limits>

#include "tests/support/compressions.h"
#include "tests/unit/parallel/steps_of_ranks.h"
#include "trireme/base/error.h"
#include "trireme/parallel/data/hook_state_copy.h"

namespace trireme::parallel {
namespace {

using test::ByName;
using test::gradients_in;
using test::Hosts;
using test::Parameters;
using test::ranks_on;
using testing::HasSubstr;
using testing::ThrowsMessage;

const Hosts kOneHost = {"a", "a", "a"}, kPairsOfHosts = {"a", "a", "b", "b"}, kUnevenHosts = {"a", "a", "b"};

CompressionOptions switched_options(const std::string& name) {
  return {.name = name, .fraction = 0.05, .rank = 2, .seed = 3};
}

using Reduced = std::vector<std::vector<ByName>>;  ///< by rank and step

/// Steps of ranks, `before_step` each on all of them.
Reduced steps_with(const Hosts& hosts, const CompressionOptions& options, ReduceScale scale, int steps,
                   const std::function<void(SwitchedHook&, int step)>& before_step) {
  Reduced reduced(hosts.size());
  comm::run_ranks_as_threads(ranks_on(hosts), [&](comm::Context& context) {
    context.world().state().parts.host_ids = hosts;
    const Parameters parameters;
    const auto hook = std::make_shared<SwitchedHook>(options);
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.bucket_mib = 0.02, .first_bucket_mib = 0.02, .scale = scale, .hook = hook});
    for (int step = 0; step < steps; ++step) {
      before_step(*hook, step);
      ddp.zero_grad();
      parameters.backward(context.rank(), step);
      reduced[static_cast<std::size_t>(context.rank())].push_back(gradients_in(parameters));
    }
  });
  return reduced;
}

ByName handed_in(const Hosts& hosts, int first, int end, ReduceScale scale) {
  ByName sums;
  for (const auto& [name, parameter] : Parameters().tensors) {
    at::Tensor sum = at::zeros(parameter.sizes());
    for (int step = first; step < end; ++step) {
      for (int rank = 0; rank < ranks_on(hosts); ++rank)
        sum += Parameters::gradient(name, parameter.sizes(), rank, step);
    }
    sums[name] = scale == ReduceScale::kMean ? sum / ranks_on(hosts) : sum;
  }
  return sums;
}

double most_apart(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

class SwitchedCompression : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, SwitchedCompression,
                         testing::ValuesIn(test::compressions_where([](const std::string& name) {
                           return name != "none" && !has_own_momentum(name) && !compresses_momentum(name);
                         })),
                         test::name_of_codec);
class SwitchedErrorFeedback : public SwitchedCompression {};
INSTANTIATE_TEST_SUITE_P(Table, SwitchedErrorFeedback, testing::ValuesIn(test::compressions_that_leave_out()),
                         test::name_of_codec);

TEST_P(SwitchedErrorFeedback, AddsResidualsToFirstUncompressedGradients) {
  constexpr int kSteps = 5;
  for (const Hosts& hosts : {kOneHost, kPairsOfHosts, kUnevenHosts}) {
    for (const ReduceScale scale : {ReduceScale::kSum, ReduceScale::kMean}) {
      const Reduced reduced =
          steps_with(hosts, switched_options(GetParam()), scale, kSteps,
                     [](SwitchedHook& hook, int step) { hook.set_compressing(step < kSteps - 1); });
      for (const auto& [name, sum] : handed_in(hosts, 0, kSteps, scale)) {
        at::Tensor arrived = at::zeros(sum.sizes());
        for (const ByName& step : reduced[0]) arrived += step.at(name);
        EXPECT_LE(most_apart(arrived, sum), 1e-4) << name << " on " << testing::PrintToString(hosts);
      }
      for (const auto& rank : reduced) {
        for (const auto& [name, gradient] : reduced[0].back())
          EXPECT_TRUE(at::equal(rank.back().at(name), gradient)) << name << ": the same bits on all ranks";
      }
    }
  }
}

/// From the second uncompressed step on.
TEST_P(SwitchedCompression, IsUncompressedSumWhileOff) {
  for (const Hosts& hosts : {kOneHost, kPairsOfHosts}) {
    const Reduced reduced = steps_with(hosts, switched_options(GetParam()), ReduceScale::kSum, 4,
                                       [](SwitchedHook& hook, int step) { hook.set_compressing(step < 2); });
    for (const auto& [name, sum] : handed_in(hosts, 3, 4, ReduceScale::kSum))
      EXPECT_LE(most_apart(reduced[0][3].at(name), sum), 1e-5) << name;
  }
}

TEST_P(SwitchedErrorFeedback, CompressesAgainWithoutOldResiduals) {
  const Hosts hosts = kOneHost;
  const Reduced reduced =
      steps_with(hosts, switched_options(GetParam()), ReduceScale::kSum, 5,
                 [](SwitchedHook& hook, int step) { hook.set_compressing(step < 2 || step > 2); });
  const ByName sums = handed_in(hosts, 3, 4, ReduceScale::kSum);
  EXPECT_GT(most_apart(reduced[0][3].at("linear"), sums.at("linear")), 0.1) << "step 4 is compressed";
  EXPECT_TRUE(at::equal(reduced[1][3].at("linear"), reduced[0][3].at("linear")));
}

TEST_P(SwitchedErrorFeedback, ScalesResidualsWithGradients) {
  const Hosts hosts = kOneHost;
  constexpr double kScale = 8;
  const Reduced reduced =
      steps_with(hosts, switched_options(GetParam()), ReduceScale::kSum, 3, [](SwitchedHook& hook, int step) {
        hook.set_gradient_scale(step < 2 ? 1 : kScale);
        hook.set_compressing(step < 2);
      });
  const ByName before = handed_in(hosts, 0, 2, ReduceScale::kSum),
               last = handed_in(hosts, 2, 3, ReduceScale::kSum);
  for (const auto& [name, sum] : last) {
    const at::Tensor residual = before.at(name) - reduced[0][0].at(name) - reduced[0][1].at(name);
    EXPECT_LE(most_apart(reduced[0][2].at(name), sum + kScale * residual), 1e-3) << name;
  }
}

TEST_P(SwitchedErrorFeedback, KeepsResidualsOfSkippedStep) {
  constexpr int kSteps = 3;
  const Hosts hosts = kOneHost;
  std::vector<std::unique_ptr<HookStateCopy>> copies(hosts.size());
  Reduced reduced(hosts.size());
  comm::run_ranks_as_threads(ranks_on(hosts), [&](comm::Context& context) {
    const Parameters parameters;
    const auto hook = std::make_shared<SwitchedHook>(switched_options(GetParam()));
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.hook = hook});
    HookStateCopy before(hook);
    const auto step_with = [&](double factor, int step) {
      ddp.zero_grad();
      at::Tensor loss = at::zeros({});
      for (const auto& [name, tensor] : parameters.tensors)
        loss =
            loss + (tensor * Parameters::gradient(name, tensor.sizes(), context.rank(), step) * factor).sum();
      loss.backward();
      return gradients_in(parameters);
    };
    auto& mine = reduced[static_cast<std::size_t>(context.rank())];
    for (int step = 0; step < kSteps - 1; ++step) mine.push_back(step_with(1, step));
    hook->set_compressing(false);
    before.take();
    const double bad = context.rank() == 1 ? std::numeric_limits<double>::infinity() : 1;
    EXPECT_FALSE(step_with(bad, kSteps - 1).at("linear").isfinite().all().item<bool>());
    before.bring_back();
    hook->set_compressing(hook->is_compressing());
    mine.push_back(step_with(1, kSteps - 1));
  });
  for (const auto& [name, sum] : handed_in(hosts, 0, kSteps, ReduceScale::kMean)) {
    at::Tensor arrived = at::zeros(sum.sizes());
    for (const ByName& step : reduced[0]) arrived += step.at(name);
    EXPECT_LE(most_apart(arrived, sum), 1e-4) << name;
  }
}

TEST(SwitchedHook, CountsBytesOfBoth) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Parameters parameters;
    const auto hook = std::make_shared<SwitchedHook>(switched_options("int8"));
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.hook = hook});
    parameters.backward(context.rank(), 0);
    const std::int64_t compressed = hook->sent_bytes();
    hook->set_compressing(false);
    parameters.backward(context.rank(), 1);
    EXPECT_GT(hook->sent_bytes() - compressed, 3 * compressed);
  });
}

TEST(SwitchedHook, RejectsCompressionThatHasTheMomentum) {
  for (const char* name : {"dgc", "one-bit", "none"}) {
    EXPECT_FALSE(can_switch(switched_options(name)));
    EXPECT_THAT([&] { const SwitchedHook hook(switched_options(name)); },
                ThrowsMessage<InvalidArgument>(HasSubstr("cannot be switched during a run")));
  }
}

}  // namespace
}  // namespace trireme::parallel
