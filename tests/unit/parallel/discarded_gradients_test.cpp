// Gradients that passes under no_sync() have accumulated. Discarded gradients do not come back, whatever
// discarded them. Changed or replaced gradients count with their new values.
#include <ATen/ops/zeros_like.h>
#include <torch/optim/sgd.h>

#include "tests/unit/parallel/data_parallel_case.h"

namespace trireme::parallel {
namespace {

struct Way {
  const char* name;
  std::function<void(TwoLayers&, DistributedDataParallel&)> discard;
  bool leaves_zeros = false;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class Discarded : public testing::TestWithParam<Way> {
 protected:
  /// Runs and discards a pass under no_sync() that reaches the second layer on rank 0 only. No later pass
  /// uses that layer.
  static void discard_a_pass(TwoLayers& model, DistributedDataParallel& ddp, int rank) {
    {
      const auto quiet = ddp.no_sync();
      model.use_second = rank == 0;
      loss_of_rank(model, rank).backward();
      model.use_second = false;
    }
    GetParam().discard(model, ddp);
  }
  static void expect_nothing_came_back(const TwoLayers& model) {
    for (const at::Tensor& gradient : {model.second->weight.grad(), model.second->bias.grad()}) {
      if (!GetParam().leaves_zeros) {
        EXPECT_FALSE(gradient.defined()) << gradient;
      } else if (gradient.defined()) {
        EXPECT_TRUE(at::equal(gradient, at::zeros_like(gradient))) << gradient;
      }
    }
  }
};

TEST_P(Discarded, DoesNotReturnWithUnusedParameterSearch) {
  TwoLayers plain;
  plain.use_second = false;
  for (const int rank : {0, 1}) loss_of_rank(plain, rank).backward();
  run_ranks_as_threads(2, [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.unused_parameters = UnusedParameters::kFind});
    for (int step = 0; step < 3; ++step) {
      discard_a_pass(*model, ddp, context.rank());
      loss_of_rank(*model, context.rank()).backward();
      expect_nothing_came_back(*model);
      EXPECT_LE((model->first->weight.grad() - plain.first->weight.grad() / 2).abs().max().item<double>(),
                1e-6);
    }
  });
}

TEST_P(Discarded, DoesNotHideMissingParameter) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model);
    discard_a_pass(*model, ddp, context.rank());
    EXPECT_THAT([&] { loss_of_rank(*model, context.rank()).backward(); },
                testing::ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("rank 0: 'second.weight', 'second.bias'; rank 1: 'second.weight'"))));
  });
}

TEST_P(Discarded, StaticUsageIgnoresDiscardedPasses) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.unused_parameters = UnusedParameters::kStatic});
    discard_a_pass(*model, ddp, context.rank());
    for (int step = 0; step < 2; ++step) {
      loss_of_rank(*model, context.rank()).backward();
      expect_nothing_came_back(*model);
    }
    model->use_second = true;
    EXPECT_THAT([&] { loss_of_rank(*model, context.rank()).backward(); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("none in the first step")));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Discarded,
    testing::Values(
        Way{"by_the_wrapper", [](TwoLayers&, DistributedDataParallel& ddp) { ddp.zero_grad(); }},
        Way{"by_the_module", [](TwoLayers& model, DistributedDataParallel&) { model.zero_grad(); }},
        Way{"by_hand",
            [](TwoLayers& model, DistributedDataParallel&) {
              for (auto& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
            }},
        Way{"by_the_optimizer",
            [](TwoLayers& model, DistributedDataParallel&) {
              torch::optim::SGD(model.parameters(), 0.1).zero_grad();
            }},
        Way{"zeroed_by_the_module",
            [](TwoLayers& model, DistributedDataParallel&) { model.zero_grad(/*set_to_none=*/false); }, true},
        Way{"zeroed_by_the_optimizer",
            [](TwoLayers& model, DistributedDataParallel&) {
              torch::optim::SGD(model.parameters(), 0.1).zero_grad(/*set_to_none=*/false);
            },
            true}),
    [](const auto& test) { return std::string(test.param.name); });

/// Gradient of the second layer's bias after two passes, with `change` in between. The first pass runs on
/// rank 0 under no_sync(). The second one runs on both ranks and does not reach the bias.
at::Tensor reduced_after(const std::function<void(at::Tensor&)>& change) {
  at::Tensor reduced;
  run_ranks_as_threads(2, [&](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model, {.unused_parameters = UnusedParameters::kFind});
    {
      const auto quiet = ddp.no_sync();
      model->use_second = context.rank() == 0;
      loss_of_rank(*model, 0).backward();
      model->use_second = false;
    }
    if (context.rank() == 0) change(model->second->bias.mutable_grad());
    loss_of_rank(*model, context.rank()).backward();
    if (context.rank() == 1) reduced = model->second->bias.grad().clone();
  });
  return reduced;
}

TEST(QuietGradients, AreReducedWithNextPass) {
  TwoLayers alone;
  loss_of_rank(alone, 0).backward();
  const at::Tensor whole = alone.second->bias.grad();
  EXPECT_TRUE(at::equal(reduced_after([](at::Tensor&) {}), whole / 2));
  EXPECT_TRUE(at::equal(reduced_after([](at::Tensor& gradient) { gradient.mul_(0.5); }), whole / 4));
  EXPECT_TRUE(at::equal(reduced_after([](at::Tensor& gradient) { gradient = gradient * 0.5; }), whole / 4));
}

// A parameter with a gradient of zeros still counts as used.
TEST(QuietGradients, OfZerosAreNoMissingOnes) {
  run_ranks_as_threads(2, [](Context& context) {
    auto model = model_without_norm();
    DistributedDataParallel ddp(context, model);
    {
      const auto quiet = ddp.no_sync();
      (loss_of_rank(*model, 0) * 0).backward();
    }
    model->use_second = false;
    loss_of_rank(*model, context.rank()).backward();
    EXPECT_TRUE(at::equal(model->second->bias.grad(), at::zeros_like(model->second->bias)));
  });
}

}  // namespace
}  // namespace trireme::parallel
