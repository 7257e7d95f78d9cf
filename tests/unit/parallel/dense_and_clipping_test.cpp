// Rules of single compressions, each compared with a serial program: dense reduction where messages would be
// larger than gradients, and local clipping.

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/unit/parallel/steps_of_ranks.h"
#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

using test::ByName;
using test::of_each_rank;
using test::Parameters;
using test::StepsOfRanks;
using test::take_steps;
using testing::HasSubstr;
using testing::ThrowsMessage;

CompressionOptions rule_options(const std::string& name) {
  return {.name = name, .fraction = 0.05, .rank = 2, .seed = 3};
}

double furthest(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

at::Tensor greatest_of(const at::Tensor& values, std::int64_t count) {
  const at::Tensor least = std::get<0>(values.flatten().abs().topk(count)).min();
  return values * values.abs().ge(least).to(at::kFloat);
}

/// For six ranks, sending half of each gradient to all others takes more bytes than an all-reduce of the
/// whole gradient.
CompressionOptions half_of_top_k() {
  CompressionOptions options = rule_options("top-k");
  options.fraction = 0.5;
  return options;
}

TEST(TopKOfManyRanks, SendsDenselyWhenThatIsSmaller) {
  constexpr int kRanks = 6;
  const StepsOfRanks outcome = of_each_rank(kRanks, half_of_top_k(), {.scale = ReduceScale::kMean});
  EXPECT_LE(static_cast<double>(outcome.sent[0]), 3 * 2 * 5 / 6.0 * 4 * (7800 + 60 + 20 + 1) + 64);
  std::vector<at::Tensor> residuals(kRanks, at::zeros({24, 3, 5, 5}));
  for (int step = 0; step < 3; ++step) {
    at::Tensor mean = at::zeros({24, 3, 5, 5});
    for (int rank = 0; rank < kRanks; ++rank) {
      at::Tensor& residual = residuals[static_cast<std::size_t>(rank)];
      residual = residual + Parameters::gradient("conv", {24, 3, 5, 5}, rank, step);
      const at::Tensor sent = greatest_of(residual, 900);
      residual = residual - sent;
      mean += sent / kRanks;
    }
    for (const auto& of_rank : outcome.reduced) {
      const at::Tensor& found = of_rank[static_cast<std::size_t>(step)].at("conv");
      EXPECT_LE(furthest(found, mean), 1e-5) << step;
      EXPECT_TRUE(at::equal(found, outcome.reduced[0][static_cast<std::size_t>(step)].at("conv")));
    }
  }
}

/// One number of rank 1 is infinite in step 1.
void backward_with_infinity(const Parameters& parameters, int rank, int step) {
  at::Tensor loss = at::zeros({});
  for (const auto& [name, tensor] : parameters.tensors) {
    at::Tensor gradient = Parameters::gradient(name, tensor.sizes(), rank, step);
    if (name == "linear" && rank == 1 && step == 1) gradient[7][70] = std::numeric_limits<float>::infinity();
    loss = loss + (tensor * gradient).sum();
  }
  loss.backward();
}

void expect_infinity_is_shown_once(const StepsOfRanks& outcome) {
  for (const auto& of_rank : outcome.reduced) {
    EXPECT_FALSE(std::isfinite(of_rank[1].at("linear").sum().item<float>()));
    EXPECT_TRUE(std::isfinite(of_rank[1].at("conv").sum().item<float>()));
    EXPECT_GT(of_rank[1].at("conv").abs().max().item<double>(), 0) << "the others are what they were";
    EXPECT_TRUE(std::isfinite(of_rank[2].at("linear").sum().item<float>()));
  }
}

TEST(TopKOfManyRanks, ShowsNonFiniteInDenseMessages) {
  expect_infinity_is_shown_once(of_each_rank(6, half_of_top_k(), {}, backward_with_infinity));
}

// ---- local clipping

/// The norm of all gradients of a rank, in f64.
double norm_of_rank(const Parameters& parameters, int rank, int step) {
  double sum = 0;
  for (const auto& [name, tensor] : parameters.tensors)
    sum +=
        Parameters::gradient(name, tensor.sizes(), rank, step).to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum);
}

/// The gradient that a rank contributes in a step when it clips to `most`.
at::Tensor clipped_gradient(const char* name, at::IntArrayRef sizes, int rank, int step, double most) {
  return Parameters::gradient(name, sizes, rank, step) *
         std::min(1.0, most / norm_of_rank(Parameters(), rank, step));
}

CompressionOptions clipping_options(double norm) {
  CompressionOptions options = rule_options("dgc");
  options.clip_norm = norm;
  return options;
}

// The gradient norms of these ranks are 95 to 105.
constexpr double kClipNorm = 130;

/// Lin et al., section 3.2: 1/sqrt(N) of the threshold, before velocity and residual. For a mean, the
/// contributed gradient is N times as large.
TEST(LocalClipping, LimitsRanksToShareBeforeVelocity) {
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
  const StepsOfRanks found = take_steps({"a", "a", "b", "b"}, clipping_options(kClipNorm)),
                     expected = of_each_rank(2, clipping_options(0), {}, backward);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(found.kept[rank].of_host.num_hosts, 2);
    for (std::size_t step = 0; step < 3; ++step) {
      // conv: with more elements than the sample, the largest ones are found from a sample. Rounding may
      // select others.
      for (const char* name : {"conv", "bias"}) {
        const at::Tensor& gradient = expected.reduced[0][step].at(name);
        EXPECT_LE((found.reduced[rank][step].at(name) - gradient).abs().max().item<double>(), 1e-5) << name;
      }
    }
  }
}

TEST(LocalClipping, PreservesNonFiniteGradients) {
  expect_infinity_is_shown_once(of_each_rank(2, clipping_options(kClipNorm), {}, backward_with_infinity));
  const StepsOfRanks at_once = of_each_rank(
      2, clipping_options(kClipNorm), {.end = 1},
      [](const Parameters& parameters, int rank, int) { backward_with_infinity(parameters, rank, 1); });
  const auto& [name, residual] = at_once.kept[1].own.front();
  EXPECT_EQ(name, "residual/conv");
  EXPECT_GT(residual.abs().max().item<double>(), 0) << "what is finite is not scaled to nothing";
}

TEST(LocalClipping, RequiresDgcAndPositiveNorm) {
  CompressionOptions options = clipping_options(1);
  options.name = "top-k";
  EXPECT_THAT([&] { make_comm_hook(options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("that is for \"dgc\"")));
  EXPECT_THAT([&] { make_comm_hook(clipping_options(-1)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("must be above 0; found -1")));
}

}  // namespace
}  // namespace trireme::parallel
