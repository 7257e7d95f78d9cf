// Compression between hosts alone equals a compression among as many ranks as there are hosts, each with the
// sum of a host's gradients, bit by bit: what those keep to is in compression_test.cpp.

#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "tests/unit/parallel/known_gradients.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/internal/host_layout.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::Parameters;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Of each rank, on which host it takes itself for.
using Hosts = std::vector<std::string>;

int ranks_on(const Hosts& hosts) { return static_cast<int>(hosts.size()); }

/// Ranks by host, in the order of their first ones.
std::vector<std::vector<int>> by_host(const Hosts& hosts) { return comm::layout_of(hosts, 0).ranks_of_host; }

CompressionOptions options_between_hosts(const std::string& name) {
  return {.name = name, .fraction = 0.05, .rank = 2, .seed = 3, .scope = "hosts"};
}

using ByName = std::map<std::string, at::Tensor>;

ByName gradients_in(const Parameters& parameters) {
  ByName found;
  for (const auto& [name, tensor] : parameters.tensors) found[name] = tensor.grad().clone();
  return found;
}

/// What a step hands in.
using Backward = std::function<void(const Parameters&, int rank, int step)>;

void backward_of_a_rank(const Parameters& parameters, int rank, int step) { parameters.backward(rank, step); }

/// One rank in the place of a host.
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

struct StepsOfRanks {
  std::vector<std::vector<ByName>> reduced;  ///< by rank and step
  std::vector<HookState> kept;               ///< by rank
  std::vector<std::int64_t> sent;            ///< by rank
};

struct Steps {
  int first = 0, end = 3;
  ReduceScale scale = ReduceScale::kSum;
  double bucket_mib = 25;
  const StepsOfRanks* go_on_from = nullptr;
};

HookState copy_of(const HookState& state) {
  HookState copy = state;
  for (auto* list : {&copy.own, &copy.common}) {
    for (auto& [name, tensor] : *list) tensor = tensor.clone();
  }
  for (HookState::Piece& piece : copy.pieces) piece.tensor = piece.tensor.clone();
  return copy;
}

void fill(const HookState& to, const HookState& from) {
  const auto copy = [](const optim::NamedTensors& into, const optim::NamedTensors& values) {
    ASSERT_EQ(into.size(), values.size());
    for (std::size_t i = 0; i < into.size(); ++i) at::Tensor(into[i].second).copy_(values[i].second);
  };
  copy(to.own, from.own);
  copy(to.common, from.common);
  for (std::size_t i = 0; i < to.pieces.size(); ++i)
    at::Tensor(to.pieces[i].tensor).copy_(from.pieces[i].tensor);
}

/// Of threads, which are on one host in truth.
StepsOfRanks take_steps(const Hosts& hosts, const CompressionOptions& options, const Steps& steps = {},
                        const Backward& backward = backward_of_a_rank) {
  StepsOfRanks outcome{.reduced = std::vector<std::vector<ByName>>(hosts.size()),
                       .kept = std::vector<HookState>(hosts.size()),
                       .sent = std::vector<std::int64_t>(hosts.size())};
  run_ranks_as_threads(ranks_on(hosts), [&](Context& context) {
    context.world().state().parts.host_ids = hosts;
    const auto rank = static_cast<std::size_t>(context.rank());
    const Parameters parameters;
    const auto hook = make_comm_hook(options);
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.bucket_mib = steps.bucket_mib,
                                 .first_bucket_mib = steps.bucket_mib,
                                 .scale = steps.scale,
                                 .hook = hook});
    if (steps.go_on_from != nullptr) fill(hook->state(), steps.go_on_from->kept[rank]);
    for (int step = steps.first; step < steps.end; ++step) {
      ddp.zero_grad();
      backward(parameters, context.rank(), step);
      outcome.reduced[rank].push_back(gradients_in(parameters));
    }
    outcome.kept[rank] = copy_of(hook->state());
    outcome.sent[rank] = hook->sent_bytes();
  });
  return outcome;
}

/// Each of so many ranks for itself.
StepsOfRanks of_each_rank(std::size_t ranks, CompressionOptions options, const Steps& steps = {},
                          const Backward& backward = backward_of_a_rank) {
  options.scope = "all";
  return take_steps(Hosts(ranks, "one"), options, steps, backward);
}

const Hosts kPairs = {"a", "a", "b", "b"}, kTurns = {"a", "b", "a", "b"}, kUneven = {"a", "a", "b"},
            kThree = {"a", "a", "b", "b", "c", "c"}, kGrowing = {"a", "b", "b", "c", "c", "c"};

class BetweenHosts : public testing::TestWithParam<std::string> {};
class KeepsBetweenHosts : public BetweenHosts {};
std::string name_of_row(const testing::TestParamInfo<std::string>& row) {
  std::string name = row.param;
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Table, BetweenHosts,
                         testing::Values("int8", "qsgd", "ternary", "sign", "top-k", "random-k", "dgc",
                                         "power-sgd"),
                         name_of_row);
INSTANTIATE_TEST_SUITE_P(Table, KeepsBetweenHosts, testing::Values("sign", "top-k", "random-k", "power-sgd"),
                         name_of_row);

TEST_P(BetweenHosts, IsTheCompressionOfTheSumsOfHosts) {
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

/// What arrived and what hosts keep are, together, what the ranks handed in.
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

TEST_P(BetweenHosts, GoesOnWithTheSameBitsFromItsState) {
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

TEST_P(BetweenHosts, ShowsWhatIsNotFiniteToAllAndGoesOn) {
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

/// Nobody else of the host sends them again: together as much as one rank of two.
TEST_P(BetweenHosts, EachGradientLeavesAHostOnce) {
  const CompressionOptions options = options_between_hosts(GetParam());
  const StepsOfRanks found = take_steps(kPairs, options);
  const StepsOfRanks of_two = of_each_rank(2, options);
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

TEST(BetweenHostsAlone, AutoGoesByHostsWhereAHostHasSeveralRanks) {
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

TEST(BetweenHostsAlone, AnUnknownScopeIsRefusedWithTheNearestOne) {
  CompressionOptions options = options_between_hosts("top-k");
  options.scope = "host";
  EXPECT_THAT([&] { make_comm_hook(options); },
              ThrowsMessage<InvalidArgument>(
                  testing::AllOf(HasSubstr("no compression scope 'host'"), HasSubstr("hosts"))));
}

TEST(BetweenHostsAlone, AHookOfOneModelIsRefusedOnAllRanksByASecondOne) {
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

// ---- local clipping

/// All of what a rank hands in, in f64.
double norm_of_rank(const Parameters& parameters, int rank, int step) {
  double sum = 0;
  for (const auto& [name, tensor] : parameters.tensors)
    sum +=
        Parameters::gradient(name, tensor.sizes(), rank, step).to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum);
}

/// Of a step's gradient, what the rank hands in when it holds them to `most`.
at::Tensor clipped_gradient(const char* name, at::IntArrayRef sizes, int rank, int step, double most) {
  return Parameters::gradient(name, sizes, rank, step) *
         std::min(1.0, most / norm_of_rank(Parameters(), rank, step));
}

CompressionOptions clipping_options(double norm) {
  CompressionOptions options = options_between_hosts("dgc");
  options.scope = "auto";
  options.clip_norm = norm;
  return options;
}

// Norms of these ranks are 95 to 105.
constexpr double kClipNorm = 130;

/// Lin et al., section 3.2: 1/sqrt(N) of the threshold, before velocity and residual. Of a mean, what is
/// handed in is N times as large.
TEST(LocalClipping, HoldsEachRankToItsShareBeforeItsVelocityTakesIt) {
  for (const ReduceScale scale : {ReduceScale::kSum, ReduceScale::kMean}) {
    const bool is_mean = scale == ReduceScale::kMean;
    const double given = is_mean ? kClipNorm / 2 : kClipNorm, most = kClipNorm / std::sqrt(2);
    for (const double bucket_mib : {25.0, 1e-4}) {
      const StepsOfRanks found =
          of_each_rank(2, clipping_options(given), {.end = 4, .scale = scale, .bucket_mib = bucket_mib});
      std::vector<at::Tensor> u(2, at::zeros({24, 3, 5, 5})), v = u;
      at::Tensor bias = at::zeros({60});
      for (int step = 0; step < 4; ++step) {
        at::Tensor conv = at::zeros({24, 3, 5, 5}), sum = at::zeros({60});
        for (int rank = 0; rank < 2; ++rank) {
          const auto of_rank = static_cast<std::size_t>(rank);
          EXPECT_GT(norm_of_rank(Parameters(), rank, step), most) << "else nothing is clipped";
          u[of_rank] = 0.9 * u[of_rank] + clipped_gradient("conv", {24, 3, 5, 5}, rank, step, most);
          v[of_rank] = v[of_rank] + u[of_rank];
          const at::Tensor least = std::get<0>(v[of_rank].flatten().abs().topk(1800 * 5 / 100)).min();
          const at::Tensor stays = v[of_rank].abs().lt(least).to(at::kFloat);
          conv += v[of_rank] * (1 - stays);
          u[of_rank] = u[of_rank] * stays;
          v[of_rank] = v[of_rank] * stays;
          sum += clipped_gradient("bias", {60}, rank, step, most);
        }
        bias = 0.9 * bias + sum;
        const ByName& reduced = found.reduced[0][static_cast<std::size_t>(step)];
        const double per_sum = is_mean ? 2 : 1;
        EXPECT_LE((reduced.at("conv") * per_sum - conv).abs().max().item<double>(), 1e-5) << step;
        EXPECT_LE((reduced.at("bias") * per_sum - bias).abs().max().item<double>(), 1e-5) << step;
      }
    }
  }
}

TEST(LocalClipping, LeavesGradientsBelowItAsTheyAre) {
  CompressionOptions without = clipping_options(0);
  const StepsOfRanks found = of_each_rank(2, clipping_options(1000)), expected = of_each_rank(2, without);
  for (std::size_t step = 0; step < 3; ++step) {
    for (const auto& [name, gradient] : expected.reduced[0][step])
      EXPECT_TRUE(at::equal(found.reduced[1][step].at(name), gradient)) << name;
  }
}

TEST(LocalClipping, IsOfRanksAlsoWhereHostsCompress) {
  const double most = kClipNorm / std::sqrt(4);
  const auto backward = [&](const Parameters& parameters, int host, int step) {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, tensor] : parameters.tensors) {
      at::Tensor sum = clipped_gradient(name.c_str(), tensor.sizes(), 2 * host, step, most) +
                       clipped_gradient(name.c_str(), tensor.sizes(), 2 * host + 1, step, most);
      loss = loss + (tensor * sum).sum();
    }
    loss.backward();
  };
  const StepsOfRanks found = take_steps(kPairs, clipping_options(kClipNorm)),
                     expected = of_each_rank(2, clipping_options(0), {}, backward);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(found.kept[rank].of_host.num_hosts, 2);
    for (std::size_t step = 0; step < 3; ++step) {
      // conv: of more elements a sample finds the greatest, and rounding may choose others.
      for (const char* name : {"conv", "bias"}) {
        const at::Tensor& gradient = expected.reduced[0][step].at(name);
        EXPECT_LE((found.reduced[rank][step].at(name) - gradient).abs().max().item<double>(), 1e-5) << name;
      }
    }
  }
}

TEST(LocalClipping, DoesNotHideWhatIsNotFinite) {
  const auto backward = [](const Parameters& parameters, int rank, int step) {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, tensor] : parameters.tensors) {
      at::Tensor gradient = Parameters::gradient(name, tensor.sizes(), rank, step);
      if (name == "linear" && rank == 1 && step == 1)
        gradient[7][70] = std::numeric_limits<float>::infinity();
      loss = loss + (tensor * gradient).sum();
    }
    loss.backward();
  };
  const StepsOfRanks outcome = of_each_rank(2, clipping_options(kClipNorm), {}, backward);
  for (const auto& of_rank : outcome.reduced) {
    EXPECT_FALSE(std::isfinite(of_rank[1].at("linear").sum().item<float>()));
    EXPECT_TRUE(std::isfinite(of_rank[1].at("conv").sum().item<float>()));
    EXPECT_GT(of_rank[1].at("conv").abs().max().item<double>(), 0) << "the others are not scaled to nothing";
    EXPECT_TRUE(std::isfinite(of_rank[2].at("linear").sum().item<float>()));
  }
}

TEST(LocalClipping, IsForDgcAndANormAboveZero) {
  CompressionOptions options = clipping_options(1);
  options.name = "top-k";
  EXPECT_THAT([&] { make_comm_hook(options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("that is for \"dgc\"")));
  EXPECT_THAT([&] { make_comm_hook(clipping_options(-1)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("must be above 0; found -1")));
}

}  // namespace
}  // namespace trireme::parallel
