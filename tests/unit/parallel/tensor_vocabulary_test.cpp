// Tensor-parallel vocabularies, attention and dropout, each compared with the same computation on whole
// tensors. In f64, with the bounds of tensor_model_test.cpp.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/whole_tensors.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/tensor/attention.h"
#include "trireme/parallel/tensor/cross_entropy.h"
#include "trireme/parallel/tensor/dropout.h"
#include "trireme/parallel/tensor/embedding.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using comm::Context;
using comm::Group;
using comm::run_ranks_as_threads;
using test::difference;
using test::part;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Shape = std::vector<std::int64_t>;

// ---- vocabulary --------------------------------------------------------------------------------------

TEST(ParallelEmbedding, EqualsOneRankForAnyVocabulary) {
  for (const std::int64_t vocabulary : {2, 8, 11}) {
    nn::Embedding whole(vocabulary, 3);
    whole->to(at::kDouble);
    model::initialise(*whole, 9);
    const at::Tensor tokens = at::arange(10, at::kLong).remainder(vocabulary).reshape({2, 5});
    const at::Tensor back = test::numbers_f64({2, 5, 3}, 2), expected = whole->forward(tokens);
    const at::Tensor logits = at::linear(expected.tanh(), whole->weight),
                     logits_back = test::numbers_f64(logits.sizes(), 3);
    logits.backward(logits_back, true);
    expected.backward(back);
    for (const int ranks : {2, 3, 4}) {
      for (const bool cut : {false, true}) {
        SCOPED_TRACE(text(vocabulary, " tokens over ", ranks, " ranks", cut ? ", sequences cut" : ""));
        test::WholeTensors values, gradients;
        run_ranks_as_threads(ranks, [&](Context& context) {
          const Group& group = context.world();
          const Sequence sequence{.length = 5};
          VocabularyParallelEmbedding embedding(group, vocabulary, 3);
          embedding.to(at::kDouble);
          model::initialise(embedding, 9);
          const at::Tensor output = cut ? embedding.forward(tokens, sequence) : embedding.forward(tokens);
          EXPECT_TRUE(at::equal(output, cut ? part(expected, 1, group) : expected));
          const at::Tensor own_logits =
              cut ? embedding.logits(output.tanh(), sequence) : embedding.logits(output.tanh());
          EXPECT_LE(difference(own_logits, part(logits, 2, group)), test::kRoundingBound);
          own_logits.backward(part(logits_back, 2, group), true);
          output.backward(cut ? part(back, 1, group) : back);
          values.add_values(embedding);
          gradients.add_gradients(embedding);
        });
        test::expect_same_parameters(*whole, values, gradients, ranks);
      }
    }
  }
}

TEST(ParallelEmbedding, RejectsUnknownTokenBeforeAnyWait) {
  run_ranks_as_threads(2, [](Context& context) {
    VocabularyParallelEmbedding embedding(context.world(), 5, 2);
    const test::OperationsSince operations(context.world());
    for (const std::int64_t bad : {5, -1}) {
      EXPECT_THAT(
          [&] { embedding.forward(at::arange(2, at::kLong).mul(bad)); },
          ThrowsMessage<InvalidArgument>(text("token ", bad, " is not in the vocabulary, which is 0 to 4")));
    }
    EXPECT_THAT(operations.list(), testing::ElementsAre());
  });
}

struct LossCase {
  std::int64_t vocabulary;
  double smoothing;
  std::vector<std::int64_t> ignored;
  at::ScalarType type;
  double size;  ///< size of the logits
};

void expect_loss_equals_one_rank(const LossCase& of, int ranks) {
  SCOPED_TRACE(text(of.vocabulary, " classes over ", ranks, " ranks, smoothing ", of.smoothing, ", ",
                    of.ignored.size(), " ignored, ", of.type, " of size ", of.size));
  const at::Tensor targets = at::arange(12, at::kLong).mul(5).remainder(of.vocabulary).reshape({3, 4});
  const at::Tensor logits = test::numbers_f64({3, 4, of.vocabulary}, 1).mul(of.size).to(of.type);
  const at::Tensor leaf = logits.clone().set_requires_grad(true);
  at::Tensor kept = targets;
  for (const std::int64_t ignored : of.ignored) kept = kept.masked_fill(kept.eq(ignored), -100);
  const at::Tensor wide = of.type == at::kDouble ? leaf : leaf.to(at::kFloat);
  const at::Tensor loss =
      at::cross_entropy_loss(wide.flatten(0, 1), kept.flatten(), {}, at::Reduction::Sum, -100, of.smoothing);
  loss.mul(0.3).backward();
  // Sums of 11 numbers and a logarithm: about 20 f32 roundings of 2^-24 each. bf16 has one final rounding of
  // 2^-8.
  const double loss_bound = of.type == at::kDouble ? test::kRoundingBound : 2e-6;
  const double bound = of.type == at::kBFloat16 ? 0x1p-8 : loss_bound;
  run_ranks_as_threads(ranks, [&](Context& context) {
    const Group& group = context.world();
    const at::Tensor own = part(logits, 2, group).clone().set_requires_grad(true);
    const at::Tensor found = vocabulary_cross_entropy(
        own, targets, group,
        {.vocabulary = of.vocabulary, .label_smoothing = of.smoothing, .ignored_classes = of.ignored});
    EXPECT_EQ(found.scalar_type(), loss.scalar_type());
    EXPECT_LE(difference(found, loss), loss_bound);
    found.mul(0.3).backward({}, /*retain_graph=*/true);
    EXPECT_EQ(own.grad().scalar_type(), of.type);
    EXPECT_LE(difference(own.grad(), part(leaf.grad(), 2, group)), bound);
    const at::Tensor first = own.grad().clone();
    found.mul(0.3).backward();
    EXPECT_TRUE(at::equal(own.grad(), first * 2));
  });
}

TEST(VocabularyCrossEntropy, EqualsOneRanksLossAndGradient) {
  const std::vector<LossCase> cases = {{11, 0, {}, at::kDouble, 1},        {11, 0.1, {}, at::kDouble, 3},
                                       {11, 0.1, {0, 10}, at::kDouble, 1}, {2, 0.2, {1}, at::kDouble, 1},
                                       {11, 0, {-100, 3}, at::kDouble, 1}, {11, 0.1, {2}, at::kFloat, 1},
                                       {11, 0.1, {2}, at::kFloat, 1e4},    {11, 0.1, {2}, at::kBFloat16, 1},
                                       {1, 0, {}, at::kDouble, 1},         {2, 0, {0, 1}, at::kDouble, 1}};
  for (const LossCase& of : cases)
    for (const int ranks : {1, 2, 3, 4}) expect_loss_equals_one_rank(of, ranks);
}

TEST(VocabularyCrossEntropy, RejectsInvalidTargetAndSecondDerivative) {
  run_ranks_as_threads(2, [](Context& context) {
    const Group& group = context.world();
    const at::Tensor logits = test::numbers_f64({2, 3}, 1).set_requires_grad(true);
    const auto loss = [&](const at::Tensor& targets, std::int64_t vocabulary) {
      return vocabulary_cross_entropy(logits, targets, group, {.vocabulary = vocabulary});
    };
    EXPECT_THAT([&] { loss(at::arange(2, at::kLong).mul(6), 6); },
                ThrowsMessage<InvalidArgument>("target 6 is not in the vocabulary, which is 0 to 5"));
    EXPECT_THAT([&] { loss(at::arange(2, at::kLong), 8); },
                ThrowsMessage<InvalidArgument>(HasSubstr("of a vocabulary of 8 rank")));
    EXPECT_THAT([&] { loss(at::zeros({2}), 6); }, ThrowsMessage<InvalidArgument>(HasSubstr("expected Long")));
    EXPECT_THAT(
        [&] {
          torch::autograd::grad({loss(at::arange(2, at::kLong), 6)}, {logits}, {}, true,
                                /*create_graph=*/true);
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("cannot be derived once more")));
  });
}

// ---- attention ---------------------------------------------------------------------------------------

TEST(ParallelAttention, RejectsMoreRanksThanHeadsWithAdvice) {
  run_ranks_as_threads(3, [](Context& context) {
    EXPECT_THAT(
        [&] { ParallelAttention(context.world(), {.width = 8, .heads = 2}); },
        ThrowsMessage<InvalidArgument>("attention of 2 heads cannot be cut over the 3 ranks of group "
                                       "'world': 1 of them would have none; use at most 2 ranks, or at "
                                       "least 3 heads"));
    EXPECT_THAT([&] { ParallelAttention(context.world(), {.width = 8, .heads = 3}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("a multiple of the heads")));
  });
}

// ---- dropout -----------------------------------------------------------------------------------------

at::Tensor dropped(ParallelDropout& dropout, const Shape& shape) {
  return dropout.forward(at::ones(shape, at::kDouble));
}

TEST(ParallelDropout, PartsDropPlacesOfWhole) {
  const Shape shape = {3, 5, 8};
  ParallelDropout alone(std::make_shared<DropoutKeys>(1), 0.4);
  EXPECT_THAT([&] { dropped(alone, shape); },
              ThrowsMessage<InvalidArgument>(HasSubstr("DropoutKeys::begin()")));
  for (const int ranks : {2, 3, 4}) {
    run_ranks_as_threads(ranks, [&](Context& context) {
      const Group& group = context.world();
      const auto keys = std::make_shared<DropoutKeys>(1);
      keys->begin(7);
      ParallelDropout dropout(keys, 0.4);
      const at::Tensor whole = dropped(dropout, shape);
      for (std::int64_t dim = 0; dim < 3; ++dim) {
        const Sequence sequence{.length = shape[static_cast<std::size_t>(dim)], .dim = dim};
        const at::Tensor input =
            part(at::ones(shape, at::kDouble), dim, group).clone().set_requires_grad(true);
        const at::Tensor output = dropout.forward(input, sequence, group);
        EXPECT_TRUE(at::equal(output, part(whole, dim, group)));
        output.sum().backward();
        EXPECT_TRUE(at::equal(input.grad(), output));
      }
      at::Tensor lowest = whole.clone(), highest = whole.clone();
      context.world().all_reduce(lowest, comm::ReduceOp::kMin);
      context.world().all_reduce(highest, comm::ReduceOp::kMax);
      EXPECT_TRUE(at::equal(lowest, highest));
    });
  }
}

TEST(ParallelDropout, PassesDrawSeparatelyAndRepeatOnRecomputation) {
  const Shape shape = {40, 50};
  const auto keys = std::make_shared<DropoutKeys>(1);
  ParallelDropout first(keys, 0.25), second(keys, 0.25);
  keys->begin(0);
  const at::Tensor once = dropped(first, shape), other = dropped(second, shape);
  keys->begin(1);
  const at::Tensor next = dropped(first, shape);
  keys->begin(0);
  EXPECT_TRUE(at::equal(dropped(first, shape), once));
  EXPECT_TRUE(once.ne(0).eq(once.eq(1 / 0.75f)).all().item<bool>());
  // Of 2000 elements 500 are dropped, plus or minus six standard deviations of 19.4. Two independent masks
  // differ in 3/8 of them: 750, plus or minus 130.
  EXPECT_NEAR(once.eq(0).sum().item<double>(), 500, 117);
  EXPECT_NEAR(once.ne(other).sum().item<double>(), 750, 130);
  EXPECT_NEAR(once.ne(next).sum().item<double>(), 750, 130);
  first.eval();
  EXPECT_TRUE(dropped(first, shape).eq(1).all().item<bool>());
  EXPECT_THAT([&] { ParallelDropout(keys, 1); }, ThrowsMessage<InvalidArgument>(HasSubstr("below 1")));
}

/// Attention followed by dropout, over `group`: output and gradients of input and weights.
struct AttentionPass {
  AttentionPass(const Group& group, const std::optional<Sequence>& sequence, double probability) {
    const auto keys = std::make_shared<DropoutKeys>(3);
    keys->begin(1);
    ParallelAttention attention(group, {.width = 12, .heads = 4, .dropout = probability, .keys = keys});
    ParallelDropout after(keys, probability);
    attention.to(at::kDouble);
    model::initialise(attention, 2);
    const auto cut = [&](const at::Tensor& tensor) { return sequence ? part(tensor, 1, group) : tensor; };
    const at::Tensor input = cut(test::numbers_f64({2, 5, 12}, 1)).clone().set_requires_grad(true);
    output = sequence ? after.forward(attention.forward(input, *sequence), *sequence, group)
                      : after.forward(attention.forward(input));
    output.backward(cut(test::numbers_f64({2, 5, 12}, 2)));
    gradient = input.grad();
    boxes = model::parameter_boxes(attention);
    for (const auto& parameter : attention.named_parameters())
      gradients[parameter.key()] = parameter.value().grad();
  }
  at::Tensor output, gradient;
  std::map<std::string, at::Tensor> gradients;
  std::vector<model::ParameterBox> boxes;
};

void expect_attention_equals_one_rank(double probability, int ranks, bool is_cut) {
  SCOPED_TRACE(text("dropout ", probability, " over ", ranks, " ranks", is_cut ? ", sequences cut" : ""));
  test::WholeTensors gradients;
  std::map<std::string, at::Tensor> expected;
  run_ranks_as_threads(ranks, [&](Context& context) {
    const auto sequence = is_cut ? std::optional(Sequence{.length = 5}) : std::nullopt;
    const AttentionPass one(context.self(), std::nullopt, probability),
        found(context.world(), sequence, probability);
    const auto cut = [&](const at::Tensor& tensor) {
      return is_cut ? part(tensor, 1, context.world()) : tensor;
    };
    EXPECT_LE(difference(found.output, cut(one.output)), test::kRoundingBound);
    EXPECT_LE(difference(found.gradient, cut(one.gradient)), test::kRoundingBound);
    for (const auto& box : found.boxes) gradients.add(box, box.parameter.grad());
    if (context.rank() == 0) expected = one.gradients;
  });
  for (const auto& [name, gradient] : expected)
    EXPECT_LE(difference(gradients.get(name, ranks), gradient), test::kRoundingBound) << name;
}

TEST(ParallelAttention, WithAndWithoutDropoutEqualsOneRank) {
  for (const double probability : {0.0, 0.3})
    for (const int ranks : {2, 3, 4})
      for (const bool is_cut : {false, true}) expect_attention_equals_one_rank(probability, ranks, is_cut);
}

}  // namespace
}  // namespace trireme::parallel
