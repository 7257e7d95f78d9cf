// Compressed reductions give the same bits on all ranks, lose nothing thanks to error feedback, and equal a
// serial program of the published rule.

#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "tests/support/compressions.h"
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

CompressionOptions options_for(const std::string& name) {
  CompressionOptions options;
  options.name = name;
  options.fraction = 0.05;
  options.rank = 2;
  options.seed = 3;
  return options;
}

using Gradients = std::map<std::string, at::Tensor>;

Gradients gradients_of(const Parameters& parameters) {
  Gradients result;
  for (const auto& [name, tensor] : parameters.tensors) result[name] = tensor.grad().clone();
  return result;
}

/// The reductions of each rank and step, and the state of the hooks at the end.
struct Outcome {
  std::vector<std::vector<Gradients>> reduced;  ///< by rank and step
  std::vector<HookState> kept;                  ///< by rank
  std::int64_t sent_bytes = 0;                  ///< of rank 0, in total
};

Outcome reduce(int ranks, int steps, const CompressionOptions& options, ReduceScale scale,
               double bucket_mib = 25) {
  Outcome outcome{.reduced = std::vector<std::vector<Gradients>>(static_cast<std::size_t>(ranks)),
                  .kept = std::vector<HookState>(static_cast<std::size_t>(ranks))};
  run_ranks_as_threads(ranks, [&](Context& context) {
    const Parameters parameters;
    const auto hook = make_comm_hook(options);
    DistributedDataParallel ddp(
        context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
        {.bucket_mib = bucket_mib, .first_bucket_mib = bucket_mib, .scale = scale, .hook = hook});
    const auto rank = static_cast<std::size_t>(context.rank());
    for (int step = 0; step < steps; ++step) {
      ddp.zero_grad();
      parameters.backward(context.rank(), step);
      outcome.reduced[rank].push_back(gradients_of(parameters));
    }
    for (auto* list : {&outcome.kept[rank].own, &outcome.kept[rank].common}) {
      const HookState state = hook->state();
      outcome.kept[rank].pieces = state.pieces;
      for (const auto& [name, tensor] : list == &outcome.kept[rank].own ? state.own : state.common)
        list->emplace_back(name, tensor.clone());
    }
    if (context.rank() == 0) outcome.sent_bytes = hook->sent_bytes();
  });
  return outcome;
}

at::Tensor kept(const HookState& state, const std::string& name) {
  for (const auto& [known, tensor] : state.own) {
    if (known == name) return tensor;
  }
  for (const auto& [known, tensor] : state.common) {
    if (known == name) return tensor;
  }
  return {};
}

double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

class Compression : public testing::TestWithParam<std::string> {};
class ErrorFeedback : public Compression {};  ///< of gradients; dgc has that of velocities

INSTANTIATE_TEST_SUITE_P(Table, Compression, testing::ValuesIn(test::lossy_gradient_compressions()),
                         test::name_of_codec);
INSTANTIATE_TEST_SUITE_P(Table, ErrorFeedback, testing::ValuesIn(test::compressions_that_leave_out()),
                         test::name_of_codec);

TEST_P(Compression, GivesAllRanksTheSameBits) {
  for (const int ranks : {2, 3, 4}) {
    const Outcome outcome = reduce(ranks, 3, options_for(GetParam()), ReduceScale::kMean);
    for (const auto& by_step : outcome.reduced) {
      for (std::size_t step = 0; step < by_step.size(); ++step) {
        for (const auto& [name, gradient] : by_step[step])
          EXPECT_TRUE(at::equal(gradient, outcome.reduced[0][step].at(name))) << name << ", " << ranks;
      }
    }
  }
}

/// dgc applies its own momentum, and its optimizer has none.
TEST_P(Compression, KeepsVectorsAndSmallGradients) {
  const CompressionOptions options = options_for(GetParam());
  const Outcome outcome = reduce(2, 3, options, ReduceScale::kMean);
  for (const char* name : {"bias", "small"}) {
    at::Tensor expected = at::zeros_like(outcome.reduced[0][0].at(name));
    for (int step = 0; step < 3; ++step) {
      const at::Tensor mean = (Parameters::gradient(name, expected.sizes(), 0, step) +
                               Parameters::gradient(name, expected.sizes(), 1, step)) /
                              2;
      expected = options.name == "dgc" ? options.momentum * expected + mean : mean;
      EXPECT_LE(distance(outcome.reduced[0][static_cast<std::size_t>(step)].at(name), expected), 1e-6)
          << name;
    }
  }
  EXPECT_FALSE(at::equal(
      outcome.reduced[0][0].at("linear"),
      (Parameters::gradient("linear", {60, 100}, 0, 0) + Parameters::gradient("linear", {60, 100}, 1, 0)) /
          2));
}

/// The sum of the received gradients and the residuals equals the sum of the ranks' gradients.
TEST_P(ErrorFeedback, LosesNothing) {
  for (const ReduceScale scale : {ReduceScale::kMean, ReduceScale::kSum}) {
    constexpr int kSteps = 12, kRanks = 3;
    const Outcome outcome = reduce(kRanks, kSteps, options_for(GetParam()), scale);
    for (const char* name : {"conv", "linear"}) {
      const at::Tensor& like = outcome.reduced[0][0].at(name);
      at::Tensor arrived = at::zeros(like.sizes()), handed_in = at::zeros(like.sizes());
      for (int step = 0; step < kSteps; ++step) {
        arrived += outcome.reduced[0][static_cast<std::size_t>(step)].at(name);
        for (int rank = 0; rank < kRanks; ++rank)
          handed_in += Parameters::gradient(name, like.sizes(), rank, step);
      }
      if (scale == ReduceScale::kMean) arrived *= kRanks;
      for (const HookState& state : outcome.kept) {
        arrived += kept(state, text("residual/", name)).view(like.sizes());
        for (const HookState::Piece& piece : state.pieces) {
          if (piece.name == text("sums_residual/", name))
            arrived.flatten().narrow(0, piece.begin, piece.tensor.numel()) += piece.tensor;
        }
      }
      EXPECT_LE(distance(arrived, handed_in), 5e-5) << name;
    }
  }
}

TEST_P(Compression, DoesNotDependOnTheBuckets) {
  const CompressionOptions options = options_for(GetParam());
  const Outcome one = reduce(2, 3, options, ReduceScale::kMean);
  const Outcome many = reduce(2, 3, options, ReduceScale::kMean, 1e-4);
  for (std::size_t step = 0; step < 3; ++step) {
    for (const auto& [name, gradient] : one.reduced[0][step])
      EXPECT_TRUE(at::equal(gradient, many.reduced[0][step].at(name))) << name << " in step " << step;
  }
}

/// A compression without a row here sends at most 0.6 of the bytes.
TEST_P(Compression, SendsFewBytes) {
  const std::map<std::string, double> most = {{"int8", 0.27},  {"qsgd", 0.15}, {"sign", 0.07},
                                              {"top-k", 0.12}, {"dgc", 0.12},  {"power-sgd", 0.15}};
  // With two ranks, an all-reduce sends the whole tensor.
  const double whole = 4.0 * (60 + 20 + 24 * 75 + 6000);
  const Outcome outcome = reduce(2, 1, options_for(GetParam()), ReduceScale::kMean);
  const auto share = most.find(GetParam());
  EXPECT_LE(static_cast<double>(outcome.sent_bytes), (share == most.end() ? 0.6 : share->second) * whole);
  EXPECT_GT(outcome.sent_bytes, 0);
}

void expect_what_is_not_finite_on_all(int ranks, const CompressionOptions& options) {
  std::vector<Gradients> after(static_cast<std::size_t>(ranks));
  run_ranks_as_threads(ranks, [&](Context& context) {
    const Parameters parameters;
    const auto hook = make_comm_hook(options);
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.hook = hook});
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      parameters.backward(context.rank(), 0);
      ddp.zero_grad();
      const at::Tensor before = kept(hook->state(), "residual/linear");
      const at::Tensor kept_before = before.defined() ? before.clone() : before;
      at::Tensor loss = at::zeros({});
      for (const auto& [name, tensor] : parameters.tensors) {
        at::Tensor gradient = Parameters::gradient(name, tensor.sizes(), context.rank(), 1);
        if (name == "linear" && context.rank() == 1) gradient[7][70] = bad;
        loss = loss + (tensor * gradient).sum();
      }
      loss.backward();
      EXPECT_FALSE(std::isfinite(gradients_of(parameters).at("linear").sum().item<float>()));
      EXPECT_TRUE(std::isfinite(gradients_of(parameters).at("conv").sum().item<float>()));
      // With power-sgd, nothing has left the other rank either.
      if (before.defined() && (context.rank() == 1 || options.name == "power-sgd")) {
        EXPECT_LE(distance(before, kept_before), 1e-5);
      }
      ddp.zero_grad();
    }
    parameters.backward(context.rank(), 2);
    after[static_cast<std::size_t>(context.rank())] = gradients_of(parameters);
  });
  for (const auto& [name, gradient] : after[0]) {
    EXPECT_TRUE(std::isfinite(gradient.sum().item<float>())) << name;
    EXPECT_TRUE(at::equal(gradient, after[1].at(name))) << name;
  }
}

TEST_P(Compression, ShowsNonFiniteAndContinuesFromResidual) {
  for (const int ranks : {2, 3}) expect_what_is_not_finite_on_all(ranks, options_for(GetParam()));
}

/// (n - 1) times the encoded bytes, or 2 (n - 1) / n times, plus some bytes for each message.
TEST(CompressionByPieces, SendsLessWithManyRanks) {
  for (const auto& [name, bytes] :
       std::map<std::string, double>{{"int8", 7800 + 4.0 * (4 + 12)}, {"sign", 7800 / 8.0 + 4.0 * 3}}) {
    const double plain = 4 * (60 + 20 + 1);
    for (const int ranks : {2, 3, 6}) {
      const double share = ranks == 2 ? 1 : 2.0 / ranks, messages = ranks == 2 ? 2 : 4;
      const double expected = (ranks - 1) * (share * bytes + 2 * plain / ranks),
                   per_message = (ranks - 1) * messages * 24;
      const auto sent =
          static_cast<double>(reduce(ranks, 1, options_for(name), ReduceScale::kMean).sent_bytes);
      EXPECT_NEAR(sent, expected + per_message / 2, per_message) << name << ", " << ranks << " ranks";
    }
  }
}

/// The rank of a piece rounds the sum by no more than each rank rounds its gradient.
TEST(CompressionByPieces, IsWithinTheRoundingOfInt8) {
  const Outcome outcome = reduce(4, 1, options_for("int8"), ReduceScale::kMean);
  at::Tensor mean = at::zeros({60, 100});
  for (int rank = 0; rank < 4; ++rank) mean += Parameters::gradient("linear", {60, 100}, rank, 0) / 4;
  const double error = distance(outcome.reduced[0][0].at("linear"), mean);
  EXPECT_LE(error, 2 * 4.0 / 127) << "4 is the greatest of a gradient, and of their mean";
  EXPECT_GT(error, 0);
}

TEST_P(Compression, ContinuesFromStateWithSameBits) {
  const CompressionOptions options = options_for(GetParam());
  const Outcome whole = reduce(2, 5, options, ReduceScale::kMean);
  const Outcome part = reduce(2, 3, options, ReduceScale::kMean);
  run_ranks_as_threads(2, [&](Context& context) {
    const auto rank = static_cast<std::size_t>(context.rank());
    const Parameters parameters;
    const auto hook = make_comm_hook(options);
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                {.hook = hook});
    const HookState state = hook->state();
    for (const auto* list : {&state.own, &state.common}) {
      for (const auto& [name, tensor] : *list) at::Tensor(tensor).copy_(kept(part.kept[rank], name));
    }
    for (int step = 3; step < 5; ++step) {
      ddp.zero_grad();
      parameters.backward(context.rank(), step);
      for (const auto& [name, gradient] : gradients_of(parameters))
        EXPECT_TRUE(at::equal(gradient, whole.reduced[rank][static_cast<std::size_t>(step)].at(name)))
            << name;
    }
  });
}

TEST(CompressionOptions, ThatDifferBetweenRanksAreNamed) {
  run_ranks_as_threads(2, [](Context& context) {
    const Parameters parameters;
    CompressionOptions options = options_for("top-k");
    options.fraction = context.rank() == 0 ? 0.05 : 0.01;
    EXPECT_THAT(
        [&] {
          DistributedDataParallel(context.world(), Replica{.parameters = parameters.tensors, .buffers = {}},
                                  {.hook = make_comm_hook(options)});
        },
        ThrowsMessage<CommError>(testing::AllOf(HasSubstr("option hook is top-k, fraction 0.05"),
                                                HasSubstr("fraction 0.01"), HasSubstr("on rank 1"))));
  });
}

TEST(CompressionOptions, OutOfRangeAreRejected) {
  CompressionOptions options = options_for("top-k");
  options.fraction = 0;
  EXPECT_THAT([&] { make_comm_hook(options); }, ThrowsMessage<InvalidArgument>(HasSubstr("found 0")));
  options = options_for("power-sgd");
  options.rank = 0;
  EXPECT_THAT([&] { make_comm_hook(options); }, ThrowsMessage<InvalidArgument>(HasSubstr("1 to 1024")));
  options = options_for("dgc");
  options.momentum = 1;
  EXPECT_THAT([&] { make_comm_hook(options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("below 1; found 1")));
}

TEST(CompressionOptions, RejectsOtherTypesThanF32ByName) {
  run_ranks_as_threads(2, [](Context& context) {
    const optim::NamedTensors parameters = {{"half", at::zeros({64, 64}, at::kBFloat16).requires_grad_()}};
    EXPECT_THAT(
        [&] {
          DistributedDataParallel(context.world(), Replica{.parameters = parameters, .buffers = {}},
                                  {.hook = make_comm_hook(options_for("top-k"))});
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("'half' is BFloat16")));
  });
}

TEST(CompressionOptions, SecondModelRejectsHookOfFirst) {
  run_ranks_as_threads(2, [](Context& context) {
    const Parameters one, other;
    const auto hook = make_comm_hook(options_for("top-k"));
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

// ---- each compared with a serial program of its rule

at::Tensor of_rank(const char* name, int rank, int step) {
  return Parameters::gradient(name, {60, 100}, rank, step);
}

/// Keeps the `count` largest values and sets the others to zero.
at::Tensor greatest(const at::Tensor& values, std::int64_t count) {
  const at::Tensor flat = values.flatten();
  const at::Tensor places = std::get<1>(flat.abs().topk(count));
  return at::zeros_like(flat).scatter(0, places, flat.index_select(0, places)).view(values.sizes());
}

TEST(TopK, IsErrorFeedbackOnLargestElements) {
  // At most as many elements as the sample, so that the threshold is exact.
  CompressionOptions options = options_for("top-k");
  const Outcome outcome = reduce(2, 4, options, ReduceScale::kMean);
  std::vector<at::Tensor> residuals(2, at::zeros({24, 3, 5, 5}));
  for (int step = 0; step < 4; ++step) {
    at::Tensor mean = at::zeros({24, 3, 5, 5});
    for (int rank = 0; rank < 2; ++rank) {
      at::Tensor& residual = residuals[static_cast<std::size_t>(rank)];
      residual = residual + Parameters::gradient("conv", {24, 3, 5, 5}, rank, step);
      const at::Tensor sent = greatest(residual, 1800 * 5 / 100);
      residual = residual - sent;
      mean += sent / 2;
    }
    EXPECT_LE(distance(outcome.reduced[0][static_cast<std::size_t>(step)].at("conv"), mean), 1e-6) << step;
  }
}

TEST(DeepGradientCompression, SendsFewerPerStepDuringWarmUp) {
  CompressionOptions options = options_for("dgc");
  options.fraction = 0.002;
  options.warmup_steps = 8;
  const Outcome outcome = reduce(2, 10, options, ReduceScale::kMean);
  for (const auto& [step, fraction] :
       std::map<int, double>{{0, 0.25}, {1, 0.25}, {2, 0.0625}, {4, 1 / 64.0}, {7, 1 / 256.0}, {8, 0.002}}) {
    const auto sent =
        outcome.reduced[0][static_cast<std::size_t>(step)].at("linear").ne(0).sum().item<std::int64_t>();
    EXPECT_LE(static_cast<double>(sent), 2 * fraction * 6000) << "of two ranks, in step " << step;
    EXPECT_GE(static_cast<double>(sent), 0.4 * fraction * 6000) << step;
  }
}

TEST(DeepGradientCompression, IsMomentumCorrectionWithFactorMasking) {
  CompressionOptions options = options_for("dgc");
  options.momentum = 0.9;
  const Outcome outcome = reduce(2, 5, options, ReduceScale::kMean);
  std::vector<at::Tensor> u(2, at::zeros({24, 3, 5, 5})), v(2, at::zeros({24, 3, 5, 5}));
  for (int step = 0; step < 5; ++step) {
    at::Tensor mean = at::zeros({24, 3, 5, 5});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      u[rank] = 0.9 * u[rank] + Parameters::gradient("conv", {24, 3, 5, 5}, static_cast<int>(rank), step);
      v[rank] = v[rank] + u[rank];
      const at::Tensor sent = greatest(v[rank], 1800 * 5 / 100);
      const at::Tensor stays = (sent == 0).to(at::kFloat);
      u[rank] = u[rank] * stays;
      v[rank] = v[rank] * stays;
      mean += sent / 2;
    }
    EXPECT_LE(distance(outcome.reduced[0][static_cast<std::size_t>(step)].at("conv"), mean), 1e-5) << step;
  }
}

TEST(PowerSgd, ContinuesPowerMethodFromLastStep) {
  const Outcome outcome = reduce(2, 4, options_for("power-sgd"), ReduceScale::kMean);
  const Outcome first = reduce(2, 0, options_for("power-sgd"), ReduceScale::kMean);
  at::Tensor q = kept(first.kept[0], "q/linear");
  std::vector<at::Tensor> residuals(2, at::zeros({60, 100}));
  for (int step = 0; step < 4; ++step) {
    at::Tensor p = at::zeros({60, 2});
    for (int rank = 0; rank < 2; ++rank) {
      residuals[static_cast<std::size_t>(rank)] =
          residuals[static_cast<std::size_t>(rank)] + of_rank("linear", rank, step);
      p += at::mm(residuals[static_cast<std::size_t>(rank)], q);
    }
    for (std::int64_t column = 0; column < 2; ++column) {
      at::Tensor mine = p.select(1, column);
      for (std::int64_t other = 0; other < column; ++other)
        mine -= mine.dot(p.select(1, other)) * p.select(1, other);
      mine /= mine.norm();
    }
    q = (at::mm(residuals[0].t(), p) + at::mm(residuals[1].t(), p)) / 2;
    const at::Tensor reduced = at::mm(p, q.t());
    for (at::Tensor& residual : residuals) residual = residual - reduced;
    EXPECT_LE(distance(outcome.reduced[0][static_cast<std::size_t>(step)].at("linear"), reduced), 2e-4)
        << step;
  }
}

TEST(PowerSgd, KeepsGradientOfItsRank) {
  std::vector<at::Tensor> reduced(2);
  at::Tensor expected;
  run_ranks_as_threads(2, [&](Context& context) {
    const at::Tensor gradient =
        at::mm(Parameters::gradient("p", {60, 2}, 0, 0), Parameters::gradient("q", {2, 100}, 0, 0));
    const optim::NamedTensors parameters = {{"m", at::zeros({60, 100}).requires_grad_()}};
    DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters, .buffers = {}},
                                {.hook = make_comm_hook(options_for("power-sgd"))});
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      (parameters[0].second * gradient).sum().backward();
    }
    reduced[static_cast<std::size_t>(context.rank())] = parameters[0].second.grad().clone();
    if (context.rank() == 0) expected = gradient;
  });
  EXPECT_LE(distance(reduced[0], expected), 1e-4);
}

}  // namespace
}  // namespace trireme::parallel
