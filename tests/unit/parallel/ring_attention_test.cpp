// Context parallelism: sequences that are split over ranks and attention over them, compared with whole
// sequences.
#include "trireme/parallel/context/ring_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/whole_tensors.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/tensor/attention.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor typed_numbers(at::IntArrayRef shape, double seed, at::ScalarType type = at::kDouble) {
  return test::numbers(shape, seed).to(type);
}

TEST(ContextSequence, TokensAreInEarlyOrLatePieces) {
  for (const int ranks : {1, 2, 3, 5}) {
    run_ranks_as_threads(ranks, [&](Context& context) {
      for (const std::int64_t length : {0, 1, 7, 12, 30}) {
        const ContextSequence sequence{.group = context.world(), .length = length};
        std::vector<int> times(static_cast<std::size_t>(length));
        for (int rank = 0; rank < ranks; ++rank) {
          for (const Range& piece : sequence.pieces_of(rank))
            for (std::int64_t i = 0; i < piece.size; ++i) ++times[static_cast<std::size_t>(piece.begin + i)];
        }
        EXPECT_THAT(times, testing::Each(1)) << length << " tokens over " << ranks << " ranks";
      }
    });
  }
  run_ranks_as_threads(2, [](Context& context) {
    const ContextSequence sequence{.group = context.world(), .length = 8};
    const at::Tensor own = own_tokens(at::arange(8, at::kLong), 0, sequence);
    EXPECT_TRUE(at::equal(own, at::tensor(context.is_main() ? std::vector<std::int64_t>{0, 1, 6, 7}
                                                            : std::vector<std::int64_t>{2, 3, 4, 5})));
  });
}

TEST(ContextSequence, PiecesAndGradientsJoinToWhole) {
  for (const int ranks : {2, 3}) {
    run_ranks_as_threads(ranks, [&](Context& context) {
      for (const std::int64_t length : {1, 7, 12}) {
        const ContextSequence sequence{.group = context.world(), .length = length};
        const at::Tensor whole = typed_numbers({2, length, 3}, 1).set_requires_grad(true),
                         back = typed_numbers({2, length, 3}, 2);
        const at::Tensor joined = join_tokens(own_tokens(whole, 1, sequence), -2, sequence);
        EXPECT_TRUE(at::equal(joined, whole));
        joined.backward(back);
        at::Tensor sum = whole.grad().clone();
        context.world().all_reduce(sum);
        EXPECT_TRUE(at::equal(sum, back)) << "terms of ranks add up to the gradient";
      }
    });
  }
}

TEST(ContextSequence, DropoutDropsPlacesOfOneRank) {
  for (const int ranks : {2, 3}) {
    run_ranks_as_threads(ranks, [](Context& context) {
      const auto keys = std::make_shared<DropoutKeys>(3);
      ParallelDropout dropout(keys, 0.4);
      keys->begin(7);
      const ContextSequence sequence{.group = context.world(), .length = 13};
      const at::Tensor whole = typed_numbers({2, 13, 5}, 1);
      const at::Tensor own = dropout.forward(own_tokens(whole, 1, sequence), 1, sequence);
      EXPECT_TRUE(at::equal(join_tokens(own, 1, sequence), dropout.forward(whole)));
      EXPECT_THAT(
          [&] {
            ParallelAttention(context.self(),
                              {.width = 4, .heads = 2, .dropout = 0.1, .keys = keys, .context = sequence});
          },
          ThrowsMessage<InvalidArgument>(HasSubstr("never give out the weights")));
    });
  }
}

/// Attention of whole sequences with its gradients, in f64, for inputs that are exact in `type`.
struct Whole {
  Whole(std::int64_t length, bool causal, at::ScalarType type) {
    const std::vector<std::int64_t> shape = {2, 3, length, 4};
    for (int i = 0; i < 3; ++i)
      inputs.push_back(typed_numbers(shape, 10 * i, type).mul(2).to(at::kDouble).set_requires_grad(true));
    back = typed_numbers(shape, 40, type).to(at::kDouble);
    output = at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0, causal, kScale);
    gradients = torch::autograd::grad({output}, inputs, {back});
  }
  static constexpr double kScale = 0.7;
  std::vector<at::Tensor> inputs, gradients;
  at::Tensor back, output;
};

/// `scale`: the largest number of the whole tensor, of which the rank has a part.
double distance(const at::Tensor& found, const at::Tensor& expected, double scale) {
  if (found.numel() == 0) return found.sizes() == expected.sizes() ? 0 : 1;
  return (found.to(at::kDouble) - expected).abs().max().item<double>() / scale;
}

/// The largest difference of output and gradients from those of whole sequences in f64, over all lengths.
double ring_difference(Context& context, at::ScalarType type, bool causal) {
  double greatest = 0;
  for (const std::int64_t length : {1, 2, 5, 16, 23}) {
    const Whole whole(length, causal, type);
    const ContextSequence sequence{.group = context.world(), .length = length};
    std::vector<at::Tensor> own;
    for (const at::Tensor& input : whole.inputs)
      own.push_back(own_tokens(input.detach().to(type), 2, sequence).set_requires_grad(true));
    const at::Tensor found =
        ring_attention(own[0], own[1], own[2], sequence, {.causal = causal, .scale = Whole::kScale});
    found.backward(own_tokens(whole.back.to(type), 2, sequence));
    EXPECT_EQ(found.scalar_type(), type);
    const double scale = whole.gradients[2].abs().max().item<double>();
    greatest =
        std::max(greatest, distance(found.detach(), own_tokens(whole.output.detach(), 2, sequence), scale));
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(own[i].grad().scalar_type(), type);
      greatest =
          std::max(greatest, distance(own[i].grad(), own_tokens(whole.gradients[i], 2, sequence), scale));
    }
  }
  return greatest;
}

// The rounding errors of f64, f32, bf16 and fp16 are 1.1e-16, 6e-8, 4e-3 and 5e-4. A few dozen numbers are
// added. 16-bit outputs of blocks are rounded once more before they are merged.
TEST(RingAttention, MatchesWholeSequencesForAnyShape) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    run_ranks_as_threads(ranks, [&](Context& context) {
      for (const bool causal : {true, false}) {
        const std::string at = text("rank ", context.rank(), " of ", ranks, causal ? ", causal" : "");
        EXPECT_LE(ring_difference(context, at::kDouble, causal), 1e-13) << at;
        EXPECT_LE(ring_difference(context, at::kFloat, causal), 1e-5) << at;
        EXPECT_LE(ring_difference(context, at::kBFloat16, causal), 0.05) << at;
        EXPECT_LE(ring_difference(context, at::kHalf, causal), 0.01) << at;
      }
    });
  }
}

TEST(RingAttention, SendsKeysRoundAndGradientsHome) {
  run_ranks_as_threads(3, [](Context& context) {
    const ContextSequence sequence{.group = context.world(), .length = 12};
    const at::Tensor own = typed_numbers({1, 2, 4, 5}, context.rank()).set_requires_grad(true);
    const auto messages = [](const test::OperationsSince& operations) {
      std::vector<std::string> sent;
      for (const std::string& each : operations.list())
        if (each.starts_with("send")) sent.push_back(each);
      return sent;
    };
    const test::OperationsSince forward(context.world());
    const at::Tensor output = ring_attention(own, own, own, sequence);
    EXPECT_THAT(messages(forward), ElementsAre("send 80", "send 80"));
    const test::OperationsSince backward(context.world());
    output.sum().backward();
    EXPECT_THAT(messages(backward), ElementsAre("send 80", "send 80", "send 80", "send 80", "send 80"));
  });
}

TEST(RingAttention, MatchesOneRankOverItsTransport) {
  run_ranks_as_threads(3,
                       [](Context& context) { EXPECT_LE(ring_difference(context, at::kFloat, true), 1e-5); },
                       {.backend = "gloo"});
}

TEST(RingAttention, RejectsMisfitsBeforeSending) {
  run_ranks_as_threads(2, [](Context& context) {
    const ContextSequence sequence{.group = context.world(), .length = 8};
    const at::Tensor own = typed_numbers({1, 2, 4, 5}, 1), more = typed_numbers({1, 2, 5, 5}, 1);
    const test::OperationsSince operations(context.world());
    EXPECT_THAT([&] { ring_attention(own, own, more, sequence); },
                ThrowsMessage<InvalidArgument>(HasSubstr("values Double of [1, 2, 5, 5]; expected")));
    EXPECT_THAT([&] { ring_attention(own, own.to(at::kFloat), own, sequence); },
                ThrowsMessage<InvalidArgument>(HasSubstr("keys Float of")));
    EXPECT_THAT(
        [&] { ring_attention(more, more, more, sequence); },
        ThrowsMessage<InvalidArgument>(
            AllOf(HasSubstr("attends with 5 tokens; of a sequence of 8 it has 4"), HasSubstr("own_tokens"))));
    EXPECT_THAT([&] { own_tokens(own, 2, sequence); },
                ThrowsMessage<InvalidArgument>(HasSubstr("has 4 tokens along dim 2; expected the whole "
                                                         "sequence: 8")));
    EXPECT_THAT([&] { join_tokens(own, 4, sequence); },
                ThrowsMessage<InvalidArgument>(HasSubstr("has no dim 4")));
    EXPECT_THAT(operations.list(), ElementsAre());
    const at::Tensor leaf = own.clone().set_requires_grad(true);
    const at::Tensor sum = ring_attention(leaf, leaf, leaf, sequence).sum();
    EXPECT_THAT([&] { torch::autograd::grad({sum}, {leaf}, {}, std::nullopt, /*create_graph=*/true); },
                ThrowsMessage<InvalidArgument>(HasSubstr("cannot be derived once more")));
  });
}

}  // namespace
}  // namespace trireme::parallel
