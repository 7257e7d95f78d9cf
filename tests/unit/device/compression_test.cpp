// Gradients on a device are encoded and decoded there. The numbers are those of the host, and only the
// encoded bytes are read back.
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "tests/support/compressions.h"
#include "tests/support/stand_in_device.h"
#include "tests/unit/parallel/known_gradients.h"
#include "trireme/comm/context.h"
#include "trireme/compress/codec.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::Parameters;

constexpr int kSteps = 4;
/// The reducer reads the flag of a bucket.
constexpr std::int64_t kFlagBytes = 4;
/// A bias of 60, a small matrix of 20 and the flag.
constexpr std::int64_t kPlainBytes = 4 * (60 + 20) + kFlagBytes;

CompressionOptions options_for(const std::string& name) {
  CompressionOptions options;
  options.name = name;
  options.fraction = 0.05;
  options.rank = 2;
  options.seed = 3;
  return options;
}

optim::NamedTensors parameters_on(c10::Device device) {
  optim::NamedTensors parameters;
  for (const auto& [name, tensor] : Parameters().tensors)
    parameters.emplace_back(name, tensor.detach().to(device).requires_grad_());
  return parameters;
}

/// One element of the last gradient is multiplied by `of_linear`.
void backward(const optim::NamedTensors& parameters, int rank, int step, float of_linear = 1) {
  std::vector<at::Tensor> losses;
  for (const auto& [name, tensor] : parameters) {
    at::Tensor gradient = Parameters::gradient(name, tensor.sizes(), rank, step);
    if (name == "linear") gradient[7][70] *= of_linear;
    losses.push_back((tensor * gradient.to(tensor.device())).sum());
  }
  at::stack(losses).sum().backward();
}

struct Outcome {
  std::vector<std::map<std::string, at::Tensor>> reduced;  ///< by step, of rank 0, on the host
  std::map<std::string, at::Tensor> kept;                  ///< of rank 0, on the host
  std::int64_t bytes_of_a_step = 0;  ///< read from the device by all ranks, in the last step
  std::int64_t reads_of_a_step = 0;
};

Outcome reduce(const std::string& device, int ranks, const CompressionOptions& options) {
  Outcome outcome;
  run_ranks_as_threads(
      ranks,
      [&](Context& context) {
        const optim::NamedTensors parameters = parameters_on(context.device());
        const auto hook = make_comm_hook(options);
        DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters, .buffers = {}},
                                    {.hook = hook});
        for (int step = 0; step < kSteps; ++step) {
          ddp.zero_grad();
          context.world().barrier();
          const std::int64_t bytes = test::bytes_read_from_stand_in(), reads = test::reads_from_stand_in();
          context.world().barrier();
          backward(parameters, context.rank(), step);
          context.world().barrier();
          if (context.rank() == 0) {
            outcome.bytes_of_a_step = test::bytes_read_from_stand_in() - bytes;
            outcome.reads_of_a_step = test::reads_from_stand_in() - reads;
            auto& reduced = outcome.reduced.emplace_back();
            for (const auto& [name, tensor] : parameters) reduced[name] = tensor.grad().cpu().clone();
          }
          context.world().barrier();
        }
        if (context.rank() != 0) return;
        const HookState state = hook->state();
        for (const auto* list : {&state.own, &state.common}) {
          for (const auto& [name, tensor] : *list) {
            outcome.kept[name] = tensor.cpu().clone();
            if (!name.starts_with("draws/")) {
              EXPECT_EQ(tensor.device(), context.device()) << name;
            }
          }
        }
        for (const HookState::Piece& piece : state.pieces) {
          outcome.kept[piece.name] = piece.tensor.cpu().clone();
          EXPECT_EQ(piece.tensor.device(), context.device()) << piece.name;
        }
      },
      {.device = device});
  return outcome;
}

bool is_rounded_on_device(const std::string& name) {
  return test::has_sums_as_scales(name) || name == "power-sgd";
}

/// Their operations on a device equal those of the host, with one rounding each.
class CompressionOnDevice : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, CompressionOnDevice,
                         testing::ValuesIn(test::compressions_where([](const std::string& name) {
                           return !compresses_momentum(name) && !is_rounded_on_device(name);
                         })),
                         test::name_of_codec);

TEST_P(CompressionOnDevice, GivesTheBitsOfTheHost) {
  for (const int ranks : {2, 3}) {
    const Outcome host = reduce("cpu", ranks, options_for(GetParam()));
    const Outcome device = reduce(test::kStandInDevice, ranks, options_for(GetParam()));
    for (std::size_t step = 0; step < host.reduced.size(); ++step) {
      for (const auto& [name, gradient] : host.reduced[step])
        EXPECT_TRUE(at::equal(device.reduced[step].at(name), gradient)) << name << ", step " << step;
    }
    for (const auto& [name, tensor] : host.kept) EXPECT_TRUE(at::equal(device.kept.at(name), tensor)) << name;
  }
}

/// A device adds their sums in another order.
class CompressionRoundedOnDevice : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, CompressionRoundedOnDevice,
                         testing::ValuesIn(test::compressions_where(is_rounded_on_device)),
                         test::name_of_codec);

/// The error of an f32 sum of n numbers is at most n 2^-24 of the sum of their magnitudes. For "sign" and
/// "qsgd" n is at most 272: 256 of a lane and the 16 lanes. For "power-sgd" a product has up to 100 summands.
/// Errors of P grow with the condition of its two columns, which is below 8 for these numbers. Both sides
/// have errors.
TEST_P(CompressionRoundedOnDevice, MatchesHostUpToRounding) {
  for (const int ranks : {2, 3}) {
    const Outcome host = reduce("cpu", ranks, options_for(GetParam()));
    const Outcome device = reduce(test::kStandInDevice, ranks, options_for(GetParam()));
    for (std::size_t step = 0; step < host.reduced.size(); ++step) {
      for (const auto& [name, gradient] : host.reduced[step]) {
        const double largest = gradient.abs().max().item<double>(), norm = gradient.norm().item<double>();
        const double bound = GetParam() == "power-sgd"
                                 ? 2 * 8 * (60 + 100) * 0x1p-24 * norm
                                 : 2 * 272 * 0x1p-24 * static_cast<double>(step + 1) * largest;
        EXPECT_LE((device.reduced[step].at(name) - gradient).abs().max().item<double>(), bound)
            << name << ", step " << step;
      }
    }
  }
}

/// A word before the bytes of a codec, rounded up to whole words.
std::int64_t slot_of(const CompressionOptions& options, const std::string& codec, std::int64_t numel) {
  const auto most = static_cast<std::int64_t>(
      compress::codec(codec)->most_bytes(static_cast<std::size_t>(numel), {.fraction = options.fraction}));
  return 8 + (most + 7) / 8 * 8;
}

/// Bytes that each rank passes to a backend in host memory.
std::int64_t encoded_bytes(const CompressionOptions& options, int ranks) {
  constexpr std::array kNumel = {24 * 75, 6000};
  if (options.name == "power-sgd") return 4 * options.rank * (24 + 75 + 60 + 100);
  const std::string codec = options.name == "dgc" ? "top-k" : options.name;
  const bool by_pieces = ranks > 2 && compress::codec(codec)->encodes_sums();
  std::int64_t bytes = 0;
  for (const std::int64_t numel : kNumel) {
    bytes += by_pieces ? (ranks + 1) * slot_of(options, codec, (numel + ranks - 1) / ranks)
                       : slot_of(options, codec, numel);
  }
  return bytes;
}

class BytesReadFromDevice : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, BytesReadFromDevice, testing::ValuesIn(test::lossy_gradient_compressions()),
                         test::name_of_codec);

TEST_P(BytesReadFromDevice, AreThoseOfTheEncodedForm) {
  for (const int ranks : {2, 3}) {
    const CompressionOptions options = options_for(GetParam());
    const Outcome outcome = reduce(test::kStandInDevice, ranks, options);
    EXPECT_EQ(outcome.bytes_of_a_step, ranks * (encoded_bytes(options, ranks) + kPlainBytes + kFlagBytes))
        << ranks << " ranks";
  }
}

TEST(BytesReadFromDevice, AreHalfAsManyInSixteenBits) {
  const auto bytes_of = [](const std::string& name) {
    return reduce(test::kStandInDevice, 2, options_for(name)).bytes_of_a_step - 2 * kFlagBytes;
  };
  for (const char* name : {"bf16", "fp16"}) EXPECT_EQ(2 * bytes_of(name), bytes_of("none")) << name;
}

class NotFiniteOnDevice : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, NotFiniteOnDevice, testing::ValuesIn(test::lossy_gradient_compressions()),
                         test::name_of_codec);

TEST_P(NotFiniteOnDevice, IsShownToAllAndKeepsResidual) {
  for (const int ranks : {2, 3}) {
    run_ranks_as_threads(
        ranks,
        [&](Context& context) {
          const optim::NamedTensors parameters = parameters_on(context.device());
          const at::Tensor& linear = parameters.back().second;
          const auto hook = make_comm_hook(options_for(GetParam()));
          DistributedDataParallel ddp(context.world(), Replica{.parameters = parameters, .buffers = {}},
                                      {.hook = hook});
          backward(parameters, context.rank(), 0);
          ddp.zero_grad();
          std::map<std::string, at::Tensor> before;
          for (const auto& [name, tensor] : hook->state().own) before[name] = tensor.cpu().clone();
          backward(parameters, context.rank(), 1, context.rank() == 1 ? INFINITY : 1);
          EXPECT_FALSE(std::isfinite(linear.grad().cpu().sum().item<float>()));
          EXPECT_TRUE(std::isfinite(parameters[2].second.grad().cpu().sum().item<float>()));
          for (const auto& [name, tensor] : hook->state().own) {
            // With power-sgd, nothing has left the other rank either. The added residual is removed again.
            if (name.ends_with("linear") && (context.rank() == 1 || GetParam() == "power-sgd")) {
              EXPECT_LE((tensor.cpu() - before.at(name)).abs().max().item<double>(), 1e-5) << name;
            }
          }
          ddp.zero_grad();
          backward(parameters, context.rank(), 2);
          EXPECT_TRUE(std::isfinite(linear.grad().cpu().sum().item<float>()));
        },
        {.device = test::kStandInDevice});
  }
}

}  // namespace
}  // namespace trireme::parallel
