// Compression "one-bit": the published update of 1-bit Adam and 1-bit LAMB. No update is larger than Adam's
// own could be. All ranks have the same bits, and error feedback preserves the momentum on both sides.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <limits>
#include <map>

#include "tests/unit/parallel/known_gradients.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::Parameters;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int kWarmup = 4, kSteps = 10;
constexpr double kRate = 0.01, kDecay = 0.05;

CompressionOptions one_bit() {
  CompressionOptions options;
  options.name = "one-bit";
  options.warmup_steps = kWarmup;
  return options;
}

optim::OptimizerOptions optimizer_options(const std::string& name) {
  return {.name = name, .lr = kRate, .weight_decay = kDecay, .variance_steps = kWarmup, .eps = 1e-6};
}

using Values = std::map<std::string, at::Tensor>;

/// The first inputs of "linear" never have a gradient in the warm-up, and the next ten rarely have one.
at::Tensor gradient_of(const std::string& name, at::IntArrayRef sizes, int rank, int step) {
  at::Tensor gradient = Parameters::gradient(name, sizes, rank, step);
  if (name == "linear" && step < kWarmup) {
    gradient.narrow(1, 0, 10).zero_();
    gradient.narrow(1, 10, 10).mul_(1e-9);
  }
  return gradient;
}
/// Adam moves an element by at most this times the rate: (1 - beta1) / sqrt(1 - beta2).
const double kMaxUpdate = 0.1 / std::sqrt(0.001);

struct OneBitOutcome {
  std::vector<std::vector<Values>> weights, momenta;  ///< by rank and step
  std::vector<HookState> kept;                        ///< by rank
  std::int64_t sent_in_warmup = 0, sent = 0;          ///< of rank 0
};

struct Setting {
  int ranks = 2;
  std::string optimizer = "adamw";
  ReduceScale scale = ReduceScale::kMean;
  double bucket_mib = 25;
};

OneBitOutcome train(const Setting& setting) {
  const auto ranks = static_cast<std::size_t>(setting.ranks);
  OneBitOutcome outcome{.weights = std::vector<std::vector<Values>>(ranks),
                        .momenta = std::vector<std::vector<Values>>(ranks),
                        .kept = std::vector<HookState>(ranks)};
  run_ranks_as_threads(setting.ranks, [&](Context& context) {
    const Parameters parameters;
    {
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : parameters.tensors)
        at::Tensor(tensor).copy_(Parameters::gradient(name, tensor.sizes(), 99, 0));
    }
    const auto hook = make_comm_hook(one_bit());
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.bucket_mib = setting.bucket_mib,
                                 .first_bucket_mib = setting.bucket_mib,
                                 .scale = setting.scale,
                                 .hook = hook});
    const auto optimizer = optim::make_optimizer(optimizer_options(setting.optimizer), parameters.tensors);
    hook->attach_optimizer(optimizer->state());
    const auto rank = static_cast<std::size_t>(context.rank());
    for (int step = 0; step < kSteps; ++step) {
      ddp.zero_grad();
      at::Tensor loss = at::zeros({});
      for (const auto& [name, tensor] : parameters.tensors)
        loss = loss + (tensor * gradient_of(name, tensor.sizes(), context.rank(), step)).sum();
      loss.backward();
      optimizer->step();
      if (rank == 0 && step + 1 == kWarmup) outcome.sent_in_warmup = hook->sent_bytes();
      Values weights, momenta;
      for (const auto& [name, tensor] : parameters.tensors) {
        weights[name] = tensor.detach().clone();
        momenta[name] = optimizer->state().at("exp_avg/" + name).clone();
      }
      outcome.weights[rank].push_back(weights);
      outcome.momenta[rank].push_back(momenta);
    }
    outcome.kept[rank] = hook->state();
    if (rank == 0) outcome.sent = hook->sent_bytes();
  });
  return outcome;
}

double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

// ---- a serial program of the published rules

/// For each piece, the sign of each element times the mean magnitude.
at::Tensor signs_of(const at::Tensor& flat, int pieces) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& piece : flat.chunk(pieces))
    parts.push_back(at::where(piece >= 0, piece.abs().mean(), -piece.abs().mean()));
  return at::cat(parts);
}

/// One tensor of a model, trained by one program on the gradients of all ranks.
class Serial {
 public:
  Serial(std::string name, at::IntArrayRef sizes, const Setting& setting)
      : name_(std::move(name)),
        sizes_(sizes.vec()),
        setting_(setting),
        x_(Parameters::gradient(name_, sizes, 99, 0).flatten()),
        m_(at::zeros_like(x_)),
        v_(at::zeros_like(x_)),
        worker_errors_(static_cast<std::size_t>(setting.ranks), at::zeros_like(x_)),
        server_error_(at::zeros_like(x_)) {}

  at::Tensor step(int t) {
    const at::Tensor before = m_;
    if (t < kWarmup || x_.numel() < 1024) {
      m_ = 0.9 * m_ + 0.1 * mean_gradient(t);
    } else {
      m_ = compressed_momentum(t);
    }
    const at::Tensor gradient = (m_ - 0.9 * before) / 0.1;
    if (t < kWarmup) v_ = 0.999 * v_ + 0.001 * gradient * gradient;
    const double of_v = 1 - std::pow(0.999, std::min(t + 1, kWarmup));
    const at::Tensor divisor = (v_ / of_v).sqrt() + 1e-6;
    at::Tensor update = m_ / (1 - std::pow(0.9, t + 1)) / divisor;
    if (t >= kWarmup) {
      update = at::where(v_ > 0, update.clamp(-kMaxUpdate, kMaxUpdate), at::zeros_like(update));
    }
    if (setting_.optimizer == "adamw") {
      x_ = x_ * (1 - kRate * kDecay) - kRate * update;
    } else {
      x_ = x_ - kRate * lamb(t, update, divisor, gradient);
    }
    return x_.view(sizes_);
  }

 private:
  at::Tensor of_rank(int rank, int t) const { return gradient_of(name_, sizes_, rank, t).flatten(); }
  at::Tensor mean_gradient(int t) const {
    at::Tensor sum = of_rank(0, t);
    for (int rank = 1; rank < setting_.ranks; ++rank) sum = sum + of_rank(rank, t);
    return sum / setting_.ranks;
  }
  at::Tensor compressed_momentum(int t) {
    const at::Tensor learnt = v_.ne(0).to(at::kFloat);
    at::Tensor sum = server_error_;
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      at::Tensor& error = worker_errors_[static_cast<std::size_t>(rank)];
      const at::Tensor own = (0.9 * m_ + 0.1 * of_rank(rank, t) + error) * learnt;
      const at::Tensor sent = signs_of(own, setting_.ranks) * learnt;
      error = own - sent;
      sum = sum + sent;
    }
    const at::Tensor sent = signs_of(sum, setting_.ranks) * learnt;
    server_error_ = sum - sent;
    return sent / setting_.ranks;
  }
  /// The trust ratio. After the warm-up it is its mean times a factor.
  at::Tensor lamb(int t, at::Tensor update, const at::Tensor& divisor, const at::Tensor& gradient) {
    const at::Tensor of_momentum = update;
    update = update + kDecay * x_;
    if (t < kWarmup) {
      const double ratio = (x_.norm() / update.norm()).item<double>();
      mean_ratio_ = 0.9 * mean_ratio_ + 0.1 * std::clamp(ratio, 0.01, 10.0);
      fresh_ = v_;
      return ratio * update;
    }
    fresh_ = 0.999 * fresh_ + 0.001 * gradient * gradient;
    const at::Tensor now = (fresh_ / (1 - std::pow(0.999, t + 1))).sqrt() + 1e-6;
    const double share = std::min(1.0, (of_momentum.norm() / update.norm()).item<double>());
    double factor = (divisor / now).max().item<double>() * share + 1 - share;
    factor = std::clamp(std::clamp(factor, 0.5, 4.0), 0.9 * factor_, 1.1 * factor_);
    factor_ = factor;
    return mean_ratio_ / (1 - std::pow(0.9, kWarmup)) * factor * update;
  }

  std::string name_;
  std::vector<std::int64_t> sizes_;
  Setting setting_;
  at::Tensor x_, m_, v_, fresh_;
  std::vector<at::Tensor> worker_errors_;
  at::Tensor server_error_;
  double mean_ratio_ = 0, factor_ = 1;
};

class OneBit : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, OneBit, testing::Values("adamw", "lamb"));

TEST_P(OneBit, IsPublishedUpdateOnSeveralRanks) {
  for (const int ranks : {2, 4}) {
    const Setting setting{.ranks = ranks, .optimizer = GetParam()};
    const OneBitOutcome outcome = train(setting);
    for (const auto& [name, last] : outcome.weights[0].back()) {
      Serial serial(name, last.sizes(), setting);
      for (int step = 0; step < kSteps; ++step) {
        const at::Tensor expected = serial.step(step);
        ASSERT_LE(distance(outcome.weights[0][static_cast<std::size_t>(step)].at(name), expected), 2e-4)
            << name << ", step " << step << ", " << ranks << " ranks";
      }
    }
  }
}

TEST_P(OneBit, GivesAllRanksTheSameBits) {
  for (const int ranks : {2, 3, 4}) {
    const OneBitOutcome outcome = train({.ranks = ranks, .optimizer = GetParam()});
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (const auto& by_step : outcome.weights) {
        for (const auto& [name, values] : by_step[step])
          EXPECT_TRUE(at::equal(values, outcome.weights[0][step].at(name))) << name << ", " << ranks;
      }
    }
  }
}

TEST_P(OneBit, DoesNotDependOnTheBuckets) {
  const OneBitOutcome one = train({.optimizer = GetParam()});
  const OneBitOutcome many = train({.optimizer = GetParam(), .bucket_mib = 1e-4});
  for (const auto& [name, values] : one.weights[0].back())
    EXPECT_TRUE(at::equal(values, many.weights[0].back().at(name))) << name;
}

/// Over all compressed steps, the received momenta plus the residuals equal the momenta of the ranks.
TEST(OneBitMomentum, IsLostOnNeitherSide) {
  for (const ReduceScale scale : {ReduceScale::kMean, ReduceScale::kSum}) {
    constexpr int kRanks = 3;
    const OneBitOutcome outcome = train({.ranks = kRanks, .scale = scale});
    // Multiples of the momentum in the contributions.
    const double shares = scale == ReduceScale::kMean ? kRanks : 1;
    for (const char* name : {"conv", "linear"}) {
      const auto& momenta = outcome.momenta[0];
      at::Tensor arrived = at::zeros_like(momenta[0].at(name)), handed_in = arrived.clone();
      for (std::size_t step = kWarmup; step < kSteps; ++step) {
        arrived += shares * momenta[step].at(name);
        handed_in += 0.9 * shares * momenta[step - 1].at(name);
        for (int rank = 0; rank < kRanks; ++rank)
          handed_in += 0.1 * gradient_of(name, arrived.sizes(), rank, static_cast<int>(step));
      }
      at::Tensor kept = at::zeros({arrived.numel()});
      for (const HookState& state : outcome.kept) {
        for (const auto& [known, tensor] : state.own) {
          if (known == text("residual/", name)) kept += tensor;
        }
        for (const HookState::Piece& piece : state.pieces) {
          if (piece.name == text("sums_residual/", name))
            kept.narrow(0, piece.begin, piece.tensor.numel()) += piece.tensor;
        }
      }
      EXPECT_GT(kept.abs().max().item<double>(), 0.01);
      at::Tensor difference = arrived + kept.view(arrived.sizes()) - handed_in;
      if (std::string_view("linear") == name) difference = difference.narrow(1, 10, 90);
      EXPECT_LE(difference.abs().max().item<double>(), 2e-5) << name;
    }
  }
}

TEST(OneBitMomentum, KeepsParametersWithoutWarmUpGradient) {
  const OneBitOutcome outcome = train({});
  const auto linear = [&](std::size_t step) {
    return outcome.weights[0][step].at("linear").narrow(1, 0, 10);
  };
  for (std::size_t step = kWarmup; step < kSteps; ++step) {
    EXPECT_EQ(outcome.momenta[0][step].at("linear").narrow(1, 0, 10).abs().max().item<float>(), 0);
    EXPECT_LE(distance(linear(step), linear(step - 1) * (1 - kRate * kDecay)), 1e-6) << "not by m / eps";
  }
}

TEST(OneBitMomentum, MovesNothingFurtherThanAdamWould) {
  const OneBitOutcome outcome = train({});
  for (std::size_t step = kWarmup; step < kSteps; ++step) {
    for (const auto& [name, values] : outcome.weights[0][step]) {
      const at::Tensor decayed = outcome.weights[0][step - 1].at(name) * (1 - kRate * kDecay);
      EXPECT_LE(distance(values, decayed), 1.001 * kRate * kMaxUpdate) << name << ", step " << step;
    }
  }
}

/// The bound of an update does not turn a non-finite update into a finite one.
TEST(OneBitMomentum, ShowsNonFiniteGradientInUncheckedLoop) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const Parameters parameters;
    const auto optimizer = optim::make_optimizer(optimizer_options("adamw"), parameters.tensors);
    for (int step = 0; step <= kWarmup; ++step) {
      for (const auto& [name, tensor] : parameters.tensors) {
        tensor.mutable_grad() = Parameters::gradient(name, tensor.sizes(), 0, step);
        if (step == kWarmup) tensor.mutable_grad().view({-1})[0].fill_(bad);
      }
      optimizer->step();
    }
    for (const auto& [name, tensor] : parameters.tensors)
      EXPECT_FALSE(std::isfinite(tensor.detach().view({-1})[0].item<float>())) << name;
  }
}

TEST(OneBitMomentum, IsPlainAdamInTheWarmUp) {
  std::vector<Values> plain(2);
  run_ranks_as_threads(2, [&](Context& context) {
    const Parameters parameters;
    {
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : parameters.tensors)
        at::Tensor(tensor).copy_(Parameters::gradient(name, tensor.sizes(), 99, 0));
    }
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {});
    auto options = optimizer_options("adamw");
    options.variance_steps = 0;
    const auto optimizer = optim::make_optimizer(options, parameters.tensors);
    for (int step = 0; step < kWarmup; ++step) {
      ddp.zero_grad();
      at::Tensor loss = at::zeros({});
      for (const auto& [name, tensor] : parameters.tensors)
        loss = loss + (tensor * gradient_of(name, tensor.sizes(), context.rank(), step)).sum();
      loss.backward();
      optimizer->step();
    }
    for (const auto& [name, tensor] : parameters.tensors)
      plain[static_cast<std::size_t>(context.rank())][name] = tensor.detach().clone();
  });
  const OneBitOutcome outcome = train({});
  for (const auto& [name, values] : plain[0])
    EXPECT_TRUE(at::equal(values, outcome.weights[0][kWarmup - 1].at(name))) << name;
}

/// 2 (n - 1) / n of a bit for each element, a scale for each piece, and the uncompressed tensors.
TEST(OneBitMomentum, SendsBitPerElementEachWay) {
  for (const int ranks : {2, 4}) {
    const OneBitOutcome outcome = train({.ranks = ranks});
    const double of_step = static_cast<double>(outcome.sent - outcome.sent_in_warmup) / (kSteps - kWarmup);
    const double pieces = 2.0 * (ranks - 1) * (7800.0 / 8 / ranks + 2 * (4 + 8));
    const double plain = 2.0 * (ranks - 1) / ranks * 4 * (60 + 20 + 1);
    EXPECT_NEAR(of_step, pieces + plain, 2.0 * (ranks - 1) * 2 * 8) << ranks;
    EXPECT_NEAR(static_cast<double>(outcome.sent_in_warmup) / kWarmup,
                2.0 * (ranks - 1) / ranks * 4 * (7800 + 81), 64);
  }
}

TEST(OneBitMomentum, WantsAnOptimizerThatHasOne) {
  std::barrier both_are_made(2);
  run_ranks_as_threads(2, [&](Context& context) {
    const Parameters parameters;
    const auto hook = make_comm_hook(one_bit());
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.hook = hook});
    const auto sgd = optim::make_optimizer({.name = "sgd", .lr = 0.1, .momentum = 0.9}, parameters.tensors);
    EXPECT_THAT([&] { hook->attach_optimizer(sgd->state()); },
                ThrowsMessage<InvalidArgument>(HasSubstr("needs exp_avg of 'conv'")));
    // This rank may get the error of the other rank before its own, but not while it still creates its
    // wrapper.
    both_are_made.arrive_and_wait();
    EXPECT_THAT([&] { parameters.backward(context.rank(), 0); },
                ThrowsMessage<Error>(HasSubstr("call attach_optimizer()")));
  });
}

TEST(OneBitMomentum, WantsAWarmUp) {
  CompressionOptions options = one_bit();
  options.warmup_steps = 0;
  EXPECT_THAT([&] { make_comm_hook(options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("15 to 25 % of all steps; found 0")));
  options = one_bit();
  options.momentum = 1;
  EXPECT_THAT([&] { make_comm_hook(options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("below 1; found 1")));
}

}  // namespace
}  // namespace trireme::parallel
