// Communication and linear layers of tensor parallelism, each compared with the same computation on whole
// tensors. In f64, with the bounds of tensor_model_test.cpp.
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/whole_tensors.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/model/deferred.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/tensor/embedding.h"
#include "trireme/parallel/tensor/gradient_norm.h"
#include "trireme/parallel/tensor/joint_pass.h"
#include "trireme/parallel/tensor/linear.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using comm::Context;
using comm::Group;
using comm::run_ranks_as_threads;
using test::difference;
using test::part;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// ---- communication with gradients --------------------------------------------------------------------

/// The sum of the inputs of all ranks, which are activations of that shape or parts of them.
at::Tensor sum_of_numbers(at::IntArrayRef shape, double seed, int ranks) {
  at::Tensor sum = at::zeros(shape, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) sum += test::numbers_f64(shape, seed + rank);
  return sum;
}

/// A function of one tensor, with its input, output, output gradient and expected input gradient.
struct Way {
  std::function<at::Tensor(const at::Tensor&)> function;
  at::Tensor input, output, output_gradient, input_gradient;
};

void expect_way(const Way& way, const std::string& what) {
  const at::Tensor input = way.input.clone().set_requires_grad(true);
  const at::Tensor output = way.function(input);
  EXPECT_LE(difference(output, way.output), test::kRoundingBound) << what << " forward";
  output.backward(way.output_gradient);
  EXPECT_LE(difference(input.grad(), way.input_gradient), test::kRoundingBound) << what << " backward";
}

using Shape = std::vector<std::int64_t>;

TEST(TensorCollectives, SendGradientsBackForAnySize) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks_as_threads(ranks, [&](Context& context) {
      const Group& group = context.world();
      const int rank = context.rank();
      for (const Shape& shape : {Shape{6, 12, 2}, Shape{5, 7, 3}, Shape{2, 1, 1}}) {
        const at::Tensor same = test::numbers_f64(shape, 1), same_back = test::numbers_f64(shape, 2);
        const at::Tensor own = test::numbers_f64(shape, 10 + rank),
                         own_back = test::numbers_f64(shape, 20 + rank);
        const at::Tensor sum = sum_of_numbers(shape, 10, ranks), sum_back = sum_of_numbers(shape, 20, ranks);
        expect_way(
            {[&](const at::Tensor& x) { return copy_to_ranks(x, group); }, same, same, own_back, sum_back},
            "copy_to_ranks");
        expect_way(
            {[&](const at::Tensor& x) { return sum_over_ranks(x, group); }, own, sum, same_back, same_back},
            "sum_over_ranks");
        for (std::int64_t dim = 0; dim < 3; ++dim) {
          const std::string along = text(" of ", shape, " over ", ranks, " ranks along dim ", dim);
          const Sequence sequence{.length = shape[static_cast<std::size_t>(dim)], .dim = dim};
          expect_way({[&](const at::Tensor& x) { return gather_sequence(x, sequence, group); },
                      part(same, dim, group), same, own_back, part(sum_back, dim, group)},
                     "gather_sequence" + along);
          expect_way({[&](const at::Tensor& x) { return sum_to_sequence(x, sequence, group); }, own,
                      part(sum, dim, group), part(same_back, dim, group), same_back},
                     "sum_to_sequence" + along);
          expect_way({[&](const at::Tensor& x) { return own_part(x, dim - 3, group); }, same,
                      part(same, dim, group), part(same_back, dim, group), same_back},
                     "own_part" + along);
          expect_way({[&](const at::Tensor& x) { return join_parts(x, dim - 3, sequence.length, group); },
                      part(same, dim, group), same, same_back, part(same_back, dim, group)},
                     "join_parts" + along);
        }
      }
    });
  }
}

TEST(TensorCollectives, OneRankKeepsTensorWithoutNode) {
  run_ranks_as_threads(1, [](Context& context) {
    const Group& group = context.world();
    const test::OperationsSince operations(group);
    const at::Tensor input = test::numbers_f64({2, 3}, 1).set_requires_grad(true);
    for (const at::Tensor& output :
         {copy_to_ranks(input, group), sum_over_ranks(input, group),
          gather_sequence(input, {.length = 3}, group), sum_to_sequence(input, {.length = 3}, group),
          own_part(input, 1, group), join_parts(input, 1, 3, group)})
      EXPECT_TRUE(output.is_same(input));
    EXPECT_THAT(operations.list(), testing::ElementsAre());
  });
}

TEST(TensorCollectives, DoNotChangeTheirInputs) {
  run_ranks_as_threads(2, [](Context& context) {
    const Group& group = context.world();
    const at::Tensor before = test::numbers_f64({3, 4}, context.rank()), input = before.clone();
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(sum_over_ranks(input, group).requires_grad());
    own_part(input, 0, group).zero_();
    sum_to_sequence(input, {.length = 4}, group).zero_();
    EXPECT_TRUE(at::equal(input, before));
    // One tensor is the gradient of both branches of a sum.
    const at::AutoGradMode with_gradients(true);
    const at::Tensor leaf = test::numbers_f64({3, 4}, 1).set_requires_grad(true),
                     copy = test::numbers_f64({3, 4}, 2).set_requires_grad(true);
    (copy_to_ranks(leaf, group) + copy).backward(before);
    EXPECT_TRUE(at::equal(copy.grad(), before));
  });
}

TEST(TensorCollectives, RejectPartOfAnotherRank) {
  run_ranks_as_threads(2, [](Context& context) {
    const Group& group = context.world();
    const at::Tensor input = test::numbers_f64({2, 3, 4}, 1);
    EXPECT_THAT([&] { gather_sequence(input, {.length = 9}, group); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("has a part of 3 along dim 1"), HasSubstr("of 9 in all it has"))));
    EXPECT_THAT([&] { sum_to_sequence(input, {.length = 9}, group); },
                ThrowsMessage<InvalidArgument>(HasSubstr("expected the whole sequence")));
    EXPECT_THAT([&] { own_part(input, 3, group); },
                ThrowsMessage<InvalidArgument>(HasSubstr("has no dim 3")));
  });
}

// ---- linear layers -----------------------------------------------------------------------------------

/// Two linear layers of some sizes, with a function of single elements between them.
struct Sizes {
  std::int64_t in, hidden, out;
};

class ParallelPair : public nn::Module {
 public:
  ParallelPair(const Group& group, const Sizes& sizes)
      : first_(
            register_module("first", std::make_shared<ColumnParallelLinear>(
                                         group, ParallelLinearOptions{.in = sizes.in, .out = sizes.hidden}))),
        second_(register_module("second",
                                std::make_shared<RowParallelLinear>(
                                    group, ParallelLinearOptions{.in = sizes.hidden, .out = sizes.out}))) {
    to(at::kDouble);
    model::initialise(*this, 7);
  }
  at::Tensor forward(const at::Tensor& input) { return second_->forward(first_->forward(input).tanh()); }
  at::Tensor forward(const at::Tensor& part, const Sequence& sequence) {
    return second_->forward(first_->forward(part, sequence).tanh(), sequence);
  }

 private:
  std::shared_ptr<ColumnParallelLinear> first_;
  std::shared_ptr<RowParallelLinear> second_;
};

struct WholePair : nn::Module {
  explicit WholePair(const Sizes& sizes)
      : first(register_module("first", nn::Linear(sizes.in, sizes.hidden))),
        second(register_module("second", nn::Linear(sizes.hidden, sizes.out))) {
    to(at::kDouble);
    model::initialise(*this, 7);
  }
  at::Tensor forward(const at::Tensor& input) { return second->forward(first->forward(input).tanh()); }
  nn::Linear first, second;
};

void expect_pair_equals_one_rank(const Sizes& sizes, int ranks, std::optional<Sequence> sequence) {
  SCOPED_TRACE(text(sizes.in, " to ", sizes.hidden, " to ", sizes.out, " over ", ranks, " ranks",
                    sequence ? ", sequences cut" : ""));
  const at::Tensor input = test::numbers_f64({2, 5, sizes.in}, 1),
                   back = test::numbers_f64({2, 5, sizes.out}, 2);
  WholePair whole(sizes);
  const at::Tensor leaf = input.clone().set_requires_grad(true), expected = whole.forward(leaf);
  expected.backward(back, /*retain_graph=*/true);
  expected.backward(back);
  test::WholeTensors values, gradients;
  run_ranks_as_threads(ranks, [&](Context& context) {
    const Group& group = context.world();
    const auto cut = [&](const at::Tensor& tensor) { return sequence ? part(tensor, 1, group) : tensor; };
    ParallelPair pair(group, sizes);
    const at::Tensor own = cut(input).clone().set_requires_grad(true);
    const at::Tensor output = sequence ? pair.forward(own, *sequence) : pair.forward(own);
    EXPECT_LE(difference(output, cut(expected)), test::kRoundingBound);
    output.backward(cut(back), /*retain_graph=*/true);  // a graph may be used twice, and gradients add up
    output.backward(cut(back));
    EXPECT_LE(difference(own.grad(), cut(leaf.grad())), test::kRoundingBound);
    values.add_values(pair);
    gradients.add_gradients(pair);
  });
  test::expect_same_parameters(whole, values, gradients, ranks);
}

TEST(ParallelLinear, PairMatchesOneRankForOddSizes) {
  for (const Sizes& sizes : {Sizes{3, 8, 4}, Sizes{4, 7, 5}, Sizes{1, 2, 1}}) {
    for (const int ranks : {1, 2, 3, 4}) {
      expect_pair_equals_one_rank(sizes, ranks, std::nullopt);
      expect_pair_equals_one_rank(sizes, ranks, Sequence{.length = 5});
    }
  }
}

TEST(ParallelLinear, SecondGradientsMatchOneRank) {
  const Sizes sizes{3, 5, 2};
  const auto penalty = [](const at::Tensor& output, const at::Tensor& input) {
    return torch::autograd::grad({output.sin().sum()}, {input}, {}, true, /*create_graph=*/true)[0]
        .pow(3)
        .sum();
  };
  WholePair whole(sizes);
  const at::Tensor leaf = test::numbers_f64({4, 3}, 1).set_requires_grad(true);
  penalty(whole.forward(leaf), leaf).backward();
  test::WholeTensors values, gradients;
  run_ranks_as_threads(3, [&](Context& context) {
    ParallelPair pair(context.world(), sizes);
    const at::Tensor input = test::numbers_f64({4, 3}, 1).set_requires_grad(true);
    penalty(pair.forward(input), input).backward();
    EXPECT_LE(difference(input.grad(), leaf.grad()), test::kRoundingBound);
    values.add_values(pair);
    for (const auto& box : model::parameter_boxes(pair))
      if (box.name != "second.bias") gradients.add(box, box.parameter.grad());
  });
  whole.second->bias.mutable_grad() = at::Tensor();
  for (const auto& parameter : whole.named_parameters()) {
    if (parameter.key() == "second.bias") continue;
    EXPECT_LE(difference(gradients.get(parameter.key(), 3), parameter.value().grad()), test::kRoundingBound)
        << parameter.key();
  }
}

TEST(ParallelLinear, PartsAndUnitsAreCutSeparately) {
  run_ranks_as_threads(3, [](Context& context) {
    // 2 parts of 4 units of 2 features. The ranks have 1, 1 and 2 units of each part.
    ColumnParallelLinear layer(context.world(), {.in = 3, .out = 16, .parts = 2, .unit = 2});
    nn::Linear whole(3, 16);
    model::initialise(layer, 1);
    model::initialise(*whole, 1);
    const std::vector<std::vector<std::int64_t>> rows = {
        {0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}};
    const auto& mine = rows[static_cast<std::size_t>(context.rank())];
    const at::Tensor input = test::numbers({5, 3}, 1),
                     expected = at::linear(input, whole->weight, whole->bias);
    const at::Tensor output = layer.forward(input);
    ASSERT_EQ(output.size(1), static_cast<std::int64_t>(mine.size()));
    for (std::size_t i = 0; i < mine.size(); ++i)
      EXPECT_LE(difference(output.select(1, static_cast<std::int64_t>(i)), expected.select(1, mine[i])),
                1e-6);
  });
}

/// While the object exists, linear layers of this thread compute in bf16.
struct InBfloat16 {
  InBfloat16() { set(true); }
  ~InBfloat16() {
    at::autocast::clear_cache();
    set(false);
  }
  static void set(bool enabled) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
  }
};

// One rank rounds each result to 8 bits once. Three ranks round their terms and the two sums. The difference
// is at most 6 roundings of 2^-9 of the largest term, in both layers and both directions.
TEST(ParallelLinear, ComputesInBfloat16LikeOneRank) {
  const Sizes sizes{16, 24, 8};
  const at::Tensor input = test::numbers({2, 5, 16}, 1);
  const auto pass = [&](const Group& group, const std::optional<Sequence>& sequence,
                        test::WholeTensors& gradients) {
    ParallelPair pair(group, sizes);
    pair.to(at::kFloat);
    at::Tensor output;
    {
      const InBfloat16 precision;
      output = sequence ? pair.forward(part(input, 1, group), *sequence) : pair.forward(input);
    }
    output.to(at::kFloat).square().sum().backward();
    gradients.add_gradients(pair);
  };
  test::WholeTensors one, whole, cut;
  run_ranks_as_threads(3, [&](Context& context) {
    if (context.is_main()) pass(context.self(), std::nullopt, one);
    pass(context.world(), std::nullopt, whole);
    pass(context.world(), Sequence{.length = 5}, cut);
  });
  for (const char* name : {"first.weight", "first.bias", "second.weight", "second.bias"}) {
    EXPECT_LE(difference(whole.get(name, 3), one.get(name, 1)), 4 * 6 * 0x1p-9) << name;
    EXPECT_LE(difference(cut.get(name, 3), one.get(name, 1)), 4 * 6 * 0x1p-9) << name;
    EXPECT_GT(difference(whole.get(name, 3), one.get(name, 1)), 1e-5) << name << ": nothing was rounded";
  }
}

// With the last sizes, one rank has the whole hidden feature and the others have none.
TEST(ParallelLinear, NormCountsPartsAndReplicasOnce) {
  for (const Sizes& sizes : {Sizes{3, 8, 4}, Sizes{4, 7, 5}, Sizes{2, 1, 3}}) {
    for (const int ranks : {1, 2, 3}) {
      WholePair whole(sizes);
      whole.forward(test::numbers_f64({4, sizes.in}, 1)).square().sum().backward();
      double squares = 0;
      for (const auto& parameter : whole.parameters())
        squares += parameter.grad().square().sum().item<double>();
      run_ranks_as_threads(ranks, [&](Context& context) {
        ParallelPair pair(context.world(), sizes);
        EXPECT_EQ(gradient_norm(pair, context.world()).item<double>(), 0);
        pair.forward(test::numbers_f64({4, sizes.in}, 1)).square().sum().backward();
        const at::Tensor norm = gradient_norm(pair, context.world());
        EXPECT_NEAR(norm.item<double>() / std::sqrt(squares), 1, test::kRoundingBound);
        at::Tensor least = norm.clone(), greatest = norm.clone();
        context.world().all_reduce(least, comm::ReduceOp::kMin);
        context.world().all_reduce(greatest, comm::ReduceOp::kMax);
        EXPECT_TRUE(at::equal(least, greatest));
      });
    }
  }
}

TEST(ParallelLinear, DeferredLayerGetsSameValuesLater) {
  run_ranks_as_threads(2, [](Context& context) {
    const auto make = [&] {
      return std::make_shared<ColumnParallelLinear>(context.world(),
                                                    ParallelLinearOptions{.in = 3, .out = 5});
    };
    const auto layer = deferred(make);
    EXPECT_TRUE(model::is_deferred(*layer));
    nn::Module holder;
    holder.register_module("layer", layer);
    model::materialise(model::make_layer(holder, "layer", {layer}, nullptr));
    model::initialise(*layer, 4);
    const auto at_once = make();
    model::initialise(*at_once, 4);
    const at::Tensor input = test::numbers({2, 3}, 1);
    EXPECT_TRUE(at::equal(layer->forward(input), at_once->forward(input)));
  });
}

TEST(ParallelLinear, RejectsFeaturesThatDoNotFit) {
  run_ranks_as_threads(2, [](Context& context) {
    const Group& group = context.world();
    EXPECT_THAT(
        [&] { ColumnParallelLinear(group, {.in = 3, .out = 10, .parts = 3}); },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("column-parallel"), HasSubstr("a multiple of 3"))));
    EXPECT_THAT([&] { RowParallelLinear(group, {.in = 0, .out = 10}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("from 0 to 10 features")));
    RowParallelLinear layer(group, {.in = 6, .out = 2});
    EXPECT_THAT(
        [&] {
          layer.forward(test::numbers({2, 6}, 1));
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("expected 3 features in its last dim")));
  });
}

// ---- passes that end early ---------------------------------------------------------------------------

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("stop") {}
};

TEST(JointPass, ExceptionIsNamedOnAllRanks) {
  run_ranks_as_threads(3, [](Context& context) {
    const Group& group = context.world();
    ParallelPair pair(group, {.in = 3, .hidden = 4, .out = 2});
    const at::Tensor input = test::numbers_f64({2, 3}, 1).set_requires_grad(true);
    const auto pass = [&](bool stops) {
      const JointPass joint(group);
      const at::Tensor output = pair.forward(input);
      if (stops) throw Stop();
      output.sum().backward();
      pair.forward(input);
    };
    pass(false);
    const auto is_named = ThrowsMessage<CommError>(HasSubstr(
        "rank 1, group 'world': a pass that all ranks compute together ended early by an exception"));
    if (context.rank() == 1) {
      EXPECT_THROW(pass(true), Stop);
    } else {
      EXPECT_THAT([&] { pass(false); }, is_named);
    }
    EXPECT_THAT([&] { pass(false); }, is_named);
  });
}

TEST(JointPass, EarlyFailureMayBeRepeated) {
  run_ranks_as_threads(2, [](Context& context) {
    VocabularyParallelEmbedding embedding(context.world(), 5, 2);
    const auto look_up = [&](std::int64_t token) {
      const JointPass joint(context.world());
      return embedding.forward(at::full({1}, token, at::kLong));
    };
    look_up(2);
    EXPECT_THROW(look_up(5), InvalidArgument);
    EXPECT_EQ(look_up(4).size(1), 2);
  });
}

}  // namespace
}  // namespace trireme::parallel
