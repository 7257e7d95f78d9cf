// Compression between hosts only. It equals, bit by bit, a compression over one rank per host, each with the
// sum of its host's gradients. compression_test.cpp tests the rules themselves.

#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "tests/support/compressions.h"
#include "tests/unit/parallel/steps_of_ranks.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::Backward;
using test::by_host;
using test::ByName;
using test::gradients_in;
using test::Hosts;
using test::of_each_rank;
using test::Parameters;
using test::ranks_on;
using test::Steps;
using test::StepsOfRanks;
using test::take_steps;
using testing::HasSubstr;
using testing::ThrowsMessage;

CompressionOptions options_between_hosts(const std::string& name) {
  return {.name = name, .fraction = 0.05, .rank = 2, .seed = 3, .scope = "hosts"};
}

/// One rank that replaces a host.
Backward backward_of_hosts(const Hosts& hosts, ReduceScale scale) {
  const auto ranks = by_host(hosts);
  const double share =
      scale == ReduceScale::kMean ? static_cast<double>(ranks.size()) / ranks_on(hosts) : 1.0;
  return [=](const Parameters& parameters, int host, int step) {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, tensor] : parameters.tensors) {
      at::Tensor sum;
      for (const int rank : ranks[static_cast<std::size_t>(host)]) {
        const at::Tensor gradient = Parameters::gradient(name, tensor.sizes(), rank, step);
        sum = sum.defined() ? sum + gradient : gradient;
      }
      if (share != 1) sum *= share;
      loss = loss + (tensor * sum).sum();
    }
    loss.backward();
  };
}

const Hosts kPairs = {"a", "a", "b", "b"}, kTurns = {"a", "b", "a", "b"}, kUneven = {"a", "a", "b"},
            kThree = {"a", "a", "b", "b", "c", "c"}, kGrowing = {"a", "b", "b", "c", "c", "c"};

class BetweenHosts : public testing::TestWithParam<std::string> {};
class KeepsBetweenHosts : public BetweenHosts {};
INSTANTIATE_TEST_SUITE_P(Table, BetweenHosts, testing::ValuesIn(test::lossy_gradient_compressions()),
                         test::name_of_codec);
INSTANTIATE_TEST_SUITE_P(Table, KeepsBetweenHosts, testing::ValuesIn(test::compressions_that_leave_out()),
                         test::name_of_codec);

TEST_P(BetweenHosts, CompressesSumsOfHosts) {
  const CompressionOptions options = options_between_hosts(GetParam());
  for (const Hosts& hosts : {kPairs, kTurns, kUneven, kThree}) {
    for (const ReduceScale scale : {ReduceScale::kSum, ReduceScale::kMean}) {
      const Steps steps{.scale = scale};
      const StepsOfRanks found = take_steps(hosts, options, steps);
      const StepsOfRanks expected =
          of_each_rank(by_host(hosts).size(), options, steps, backward_of_hosts(hosts, scale));
      for (std::size_t rank = 0; rank < found.reduced.size(); ++rank) {
        for (std::size_t step = 0; step < 3; ++step) {
          for (const auto& [name, gradient] : expected.reduced[0][step])
            EXPECT_TRUE(at::equal(found.reduced[rank][step].at(name), gradient))
                << name << " on rank " << rank << " of " << testing::PrintToString(hosts);
        }
      }
    }
  }
}

/// The sum of the received gradients and the hosts' residuals equals the sum of the ranks' gradients.
TEST_P(KeepsBetweenHosts, LosesNothing) {
  constexpr int kSteps = 10;
  for (const Hosts& hosts : {kPairs, kGrowing}) {
    const StepsOfRanks outcome = take_steps(hosts, options_between_hosts(GetParam()), {.end = kSteps});
    for (const char* name : {"conv", "linear"}) {
      const at::Tensor& like = outcome.reduced[0][0].at(name);
      at::Tensor arrived = at::zeros(like.sizes()), handed_in = at::zeros(like.sizes());
      for (int step = 0; step < kSteps; ++step) {
        arrived += outcome.reduced[0][static_cast<std::size_t>(step)].at(name);
        for (int rank = 0; rank < ranks_on(hosts); ++rank)
          handed_in += Parameters::gradient(name, like.sizes(), rank, step);
      }
      int keepers = 0;
      for (const HookState& state : outcome.kept) {
        EXPECT_EQ(state.of_host.num_hosts, static_cast<int>(by_host(hosts).size()));
        for (const auto& [kept, tensor] : state.own) {
          if (kept != text("residual/", name)) continue;
          arrived += tensor.view(like.sizes());
          ++keepers;
        }
        for (const HookState::Piece& piece : state.pieces) {
          if (piece.name == text("sums_residual/", name))
            arrived.flatten().narrow(0, piece.begin, piece.tensor.numel()) += piece.tensor;
        }
      }
      EXPECT_EQ(keepers, static_cast<int>(by_host(hosts).size())) << "one rank of each host";
      EXPECT_LE((arrived - handed_in).abs().max().item<double>(), 1e-4) << name;
    }
  }
}

TEST_P(BetweenHosts, ContinuesFromStateWithSameBits) {
  const CompressionOptions options = options_between_hosts(GetParam());
  for (const Hosts& hosts : {kPairs, kGrowing}) {
    const StepsOfRanks whole = take_steps(hosts, options, {.end = 5});
    const StepsOfRanks part = take_steps(hosts, options, {.end = 3});
    const StepsOfRanks rest = take_steps(hosts, options, {.first = 3, .end = 5, .go_on_from = &part});
    for (std::size_t rank = 0; rank < rest.reduced.size(); ++rank) {
      for (std::size_t step = 0; step < 2; ++step) {
        for (const auto& [name, gradient] : rest.reduced[rank][step])
          EXPECT_TRUE(at::equal(gradient, whole.reduced[rank][step + 3].at(name))) << name << ", " << rank;
      }
    }
  }
}

TEST_P(BetweenHosts, DoesNotDependOnTheBuckets) {
  const CompressionOptions options = options_between_hosts(GetParam());
  const StepsOfRanks one = take_steps(kPairs, options),
                     many = take_steps(kPairs, options, {.bucket_mib = 1e-4});
  for (std::size_t step = 0; step < 3; ++step) {
    for (const auto& [name, gradient] : one.reduced[0][step])
      EXPECT_TRUE(at::equal(gradient, many.reduced[3][step].at(name))) << name << " in step " << step;
  }
}

TEST_P(BetweenHosts, ShowsNonFiniteToAllAndContinues) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto backward = [&](const Parameters& parameters, int rank, int step) {
      at::Tensor loss = at::zeros({});
      for (const auto& [name, tensor] : parameters.tensors) {
        at::Tensor gradient = Parameters::gradient(name, tensor.sizes(), rank, step);
        if (name == "linear" && rank == 3 && step == 1) gradient[7][70] = bad;
        loss = loss + (tensor * gradient).sum();
      }
      loss.backward();
    };
    const StepsOfRanks outcome = take_steps(kPairs, options_between_hosts(GetParam()), {}, backward);
    for (const auto& of_rank : outcome.reduced) {
      EXPECT_FALSE(std::isfinite(of_rank[1].at("linear").sum().item<float>()));
      EXPECT_TRUE(std::isfinite(of_rank[1].at("conv").sum().item<float>()));
      for (const auto& [name, gradient] : of_rank[2]) {
        EXPECT_TRUE(std::isfinite(gradient.sum().item<float>())) << name;
        EXPECT_TRUE(at::equal(gradient, outcome.reduced[0][2].at(name))) << name;
      }
    }
  }
}

/// No other rank of the host sends them again. Together the ranks of a host send as much as one rank of two.
TEST_P(BetweenHosts, EachGradientLeavesAHostOnce) {
  const CompressionOptions options = options_between_hosts(GetParam());
  const StepsOfRanks found = take_steps(kPairs, options);
  const StepsOfRanks of_two = of_each_rank(2, options, {}, backward_of_hosts(kPairs, ReduceScale::kSum));
  const double expected = static_cast<double>(of_two.sent[0]);
  EXPECT_NEAR(static_cast<double>(found.sent[0] + found.sent[1]), expected, 0.02 * expected);
  EXPECT_GT(found.sent[0], 0);
  EXPECT_GT(found.sent[1], 0);
}

TEST(BetweenHostsAlone, RanksOfAHostKeepDifferentParameters) {
  const StepsOfRanks outcome = take_steps({"a", "a", "a", "b", "b"}, options_between_hosts("dgc"));
  std::map<std::string, int> keepers;
  for (const HookState& state : outcome.kept) {
    for (const auto& [name, tensor] : state.own) ++keepers[name];
  }
  EXPECT_EQ(keepers,
            (std::map<std::string, int>{
                {"residual/conv", 2}, {"residual/linear", 2}, {"velocity/conv", 2}, {"velocity/linear", 2}}));
  EXPECT_EQ(outcome.kept[0].own.size(), 2u);
  EXPECT_EQ(outcome.kept[1].own.size(), 2u);
  EXPECT_TRUE(outcome.kept[2].own.empty()) << "it has no counterpart on the other host";
}

TEST(BetweenHostsAlone, OnOneHostItsSumIsCompressed) {
  const StepsOfRanks outcome = take_steps({"a", "a"}, options_between_hosts("top-k"));
  const at::Tensor sum =
      Parameters::gradient("linear", {60, 100}, 0, 0) + Parameters::gradient("linear", {60, 100}, 1, 0);
  const at::Tensor found = outcome.reduced[1][0].at("linear");
  EXPECT_LE(found.ne(0).sum().item<std::int64_t>(), 300);
  EXPECT_TRUE(at::equal(found, at::where(found.ne(0), sum, at::zeros({60, 100}))));
  EXPECT_EQ(outcome.sent[0] + outcome.sent[1], 0);
}

TEST(BetweenHostsAlone, AutoFollowsHostsWithSeveralRanks) {
  CompressionOptions automatic = options_between_hosts("top-k");
  automatic.scope = "auto";
  for (const Hosts& hosts : {kPairs, kUneven, Hosts{"a", "b"}, Hosts{"a", "a"}}) {
    const bool expected = hosts == kPairs || hosts == kUneven;
    EXPECT_EQ(take_steps(hosts, automatic).kept[0].of_host.num_hosts, expected ? 2 : 0)
        << testing::PrintToString(hosts);
  }
}

TEST(BetweenHostsAlone, WithoutHostsEachRankCompresses) {
  const CompressionOptions options = options_between_hosts("top-k");
  const auto with = [&](const std::string& scope) {
    CompressionOptions changed = options;
    changed.scope = scope;
    return take_steps({"a", "a"}, changed);
  };
  const StepsOfRanks found = with("auto");
  EXPECT_TRUE(at::equal(found.reduced[0][2].at("linear"), with("all").reduced[0][2].at("linear")));
  EXPECT_EQ(found.kept[1].of_host.num_hosts, 0);
  EXPECT_FALSE(at::equal(found.reduced[0][2].at("linear"), with("hosts").reduced[0][2].at("linear")));
}

TEST(BetweenHostsAlone, UnknownScopeNamesNearest) {
  CompressionOptions options = options_between_hosts("top-k");
  options.scope = "host";
  EXPECT_THAT([&] { make_comm_hook(options); },
              ThrowsMessage<InvalidArgument>(
                  testing::AllOf(HasSubstr("no compression scope 'host'"), HasSubstr("hosts"))));
}

TEST(BetweenHostsAlone, SecondModelRejectsHookOnAllRanks) {
  run_ranks_as_threads(3, [&](Context& context) {
    context.world().state().parts.host_ids = kUneven;
    const Parameters one, other;
    const auto hook = make_comm_hook(options_between_hosts("top-k"));
    const auto wrap = [&](const Parameters& parameters) {
      return std::make_unique<DistributedDataParallel>(
          context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
          DataParallelOptions{.hook = hook});
    };
    const auto first = wrap(one);
    EXPECT_THAT([&] { wrap(other); },
                ThrowsMessage<InvalidArgument>(HasSubstr("a hook belongs to one model")));
  });
}

TEST(BetweenHostsAlone, GradientsOfAnotherGroupAreRejected) {
  run_ranks_as_threads(3, [&](Context& context) {
    context.world().state().parts.host_ids = kUneven;
    const Parameters one;
    const optim::NamedTensors other = {{"other", at::zeros({64, 64}).requires_grad_()}};
    const auto hook = make_comm_hook(options_between_hosts("top-k"));
    const auto wrap = [&](const comm::Group& group, const optim::NamedTensors& parameters) {
      return std::make_unique<DistributedDataParallel>(
          group, Replica{.parameters = parameters, .buffers = {}}, DataParallelOptions{.hook = hook});
    };
    const auto first = wrap(context.world(), one.tensors);
    const auto second = context.new_group({0, 1, 2}, "second");
    EXPECT_THAT([&] { wrap(*second, other); },
                ThrowsMessage<InvalidArgument>(HasSubstr("these are gradients of group 'second'")));
  });
}

/// Information other than gradients is also exchanged by hosts.
TEST(BetweenHostsAlone, ParameterUnusedOnRankIsNamed) {
  run_ranks_as_threads(4, [](Context& context) {
    context.world().state().parts.host_ids = kPairs;
    const Parameters parameters;
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.hook = make_comm_hook(options_between_hosts("top-k"))});
    at::Tensor loss = at::zeros({});
    for (const auto& [name, tensor] : parameters.tensors) {
      if (name != "conv" || context.rank() != 3) loss = loss + tensor.sum();
    }
    EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<InvalidArgument>(HasSubstr("rank 3: 'conv'")));
    ddp.zero_grad();
    EXPECT_NO_THROW(parameters.backward(context.rank(), 0)) << "the ranks are in step";
  });
}

TEST(BetweenHostsAlone, ARankWithoutABatchTakesPart) {
  std::vector<ByName> last(4);
  run_ranks_as_threads(4, [&](Context& context) {
    context.world().state().parts.host_ids = kPairs;
    const Parameters parameters;
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.hook = make_comm_hook(options_between_hosts("power-sgd"))});
    const auto rank = static_cast<std::size_t>(context.rank());
    const int batches = context.rank() == 2 ? 1 : 3;
    int step = 0;
    for (DistributedDataParallel::Join join(ddp, [&] { last[rank] = gradients_in(parameters); });
         join.next(step < batches); ++step) {
      ddp.zero_grad();
      parameters.backward(context.rank(), step);
      last[rank] = gradients_in(parameters);
    }
  });
  for (const auto& [name, gradient] : last[0])
    for (const ByName& of_rank : last) EXPECT_TRUE(at::equal(of_rank.at(name), gradient)) << name;
}

}  // namespace
}  // namespace trireme::parallel
