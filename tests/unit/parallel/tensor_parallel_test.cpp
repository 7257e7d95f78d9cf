// The pieces of tensor parallelism, each against the same computation with whole tensors. In f64; bounds are
// those of tensor_model_test.cpp.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/whole_tensors.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/tensor/collectives.h"
#include "trireme/parallel/tensor/cut.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::Group;
using comm::run_ranks_as_threads;
using test::difference;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kBound = 1e-12;

at::Tensor numbers(at::IntArrayRef shape, double seed) { return test::numbers(shape, seed).to(at::kDouble); }

// ---- communication with gradients --------------------------------------------------------------------

/// What each rank puts in: activations of that shape, or its part of them.
at::Tensor sum_of_numbers(at::IntArrayRef shape, double seed, int ranks) {
  at::Tensor sum = at::zeros(shape, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) sum += numbers(shape, seed + rank);
  return sum;
}

at::Tensor part(const at::Tensor& whole, std::int64_t dim, const Group& group) {
  const Range range = part_of_rank(whole.size(dim), group.rank(), group.size());
  return whole.narrow(dim, range.begin, range.size);
}

/// A function of one tensor, with what goes in, comes out, comes back, and should then come out of the begin.
struct Way {
  std::function<at::Tensor(const at::Tensor&)> function;
  at::Tensor input, output, output_gradient, input_gradient;
};

void expect_way(const Way& way, const std::string& what) {
  const at::Tensor input = way.input.clone().set_requires_grad(true);
  const at::Tensor output = way.function(input);
  EXPECT_LE(difference(output, way.output), kBound) << what << " forward";
  output.backward(way.output_gradient);
  EXPECT_LE(difference(input.grad(), way.input_gradient), kBound) << what << " backward";
}

using Shape = std::vector<std::int64_t>;

TEST(TensorCollectives, SendGradientsTheWayBackForAnySizeAndDim) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks_as_threads(ranks, [&](Context& context) {
      const Group& group = context.world();
      const int rank = context.rank();
      for (const Shape& shape : {Shape{6, 12, 2}, Shape{5, 7, 3}, Shape{2, 1, 1}}) {
        const at::Tensor same = numbers(shape, 1), same_back = numbers(shape, 2);
        const at::Tensor own = numbers(shape, 10 + rank), own_back = numbers(shape, 20 + rank);
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

TEST(TensorCollectives, OneRankGetsItsOwnTensorBackWithoutANode) {
  run_ranks_as_threads(1, [](Context& context) {
    const Group& group = context.world();
    const test::OperationsSince operations(group);
    const at::Tensor input = numbers({2, 3}, 1).set_requires_grad(true);
    for (const at::Tensor& output :
         {copy_to_ranks(input, group), sum_over_ranks(input, group),
          gather_sequence(input, {.length = 3}, group), sum_to_sequence(input, {.length = 3}, group),
          own_part(input, 1, group), join_parts(input, 1, 3, group)})
      EXPECT_TRUE(output.is_same(input));
    EXPECT_THAT(operations.list(), testing::ElementsAre());
  });
}

TEST(TensorCollectives, LeaveWhatTheyAreGivenAlone) {
  run_ranks_as_threads(2, [](Context& context) {
    const Group& group = context.world();
    const at::Tensor before = numbers({3, 4}, context.rank()), input = before.clone();
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(sum_over_ranks(input, group).requires_grad());
    own_part(input, 0, group).zero_();
    sum_to_sequence(input, {.length = 4}, group).zero_();
    EXPECT_TRUE(at::equal(input, before));
    // The gradient that goes to both branches of a sum is one tensor.
    const at::AutoGradMode with_gradients(true);
    const at::Tensor leaf = numbers({3, 4}, 1).set_requires_grad(true),
                     copy = numbers({3, 4}, 2).set_requires_grad(true);
    (copy_to_ranks(leaf, group) + copy).backward(before);
    EXPECT_TRUE(at::equal(copy.grad(), before));
  });
}

TEST(TensorCollectives, RefuseAPartThatIsNotTheRanks) {
  run_ranks_as_threads(2, [](Context& context) {
    const Group& group = context.world();
    const at::Tensor input = numbers({2, 3, 4}, 1);
    EXPECT_THAT([&] { gather_sequence(input, {.length = 9}, group); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("has a part of 3 along dim 1"), HasSubstr("of 9 in all it has"))));
    EXPECT_THAT([&] { sum_to_sequence(input, {.length = 9}, group); },
                ThrowsMessage<InvalidArgument>(HasSubstr("expected the whole sequence")));
    EXPECT_THAT([&] { own_part(input, 3, group); },
                ThrowsMessage<InvalidArgument>(HasSubstr("has no dim 3")));
  });
}

}  // namespace
}  // namespace trireme::parallel
