// Gradients that are requested parameter by parameter, and updates in that order.

#include "tests/unit/parallel/data_parallel_case.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/data/lazy_update_optimizer.h"
#include "trireme/parallel/data/slicing_hook.h"

namespace trireme::parallel {
namespace {

DataParallelOptions by_parameter() {
  return {.bucket_mib = 1e-5,
          .first_bucket_mib = 1e-5,
          .end = ReductionEnd::kByParameter,
          .hook = make_slicing_hook({.slice_bytes = 30})};
}

optim::NamedTensors by_name(const torch::nn::Module& module) {
  optim::NamedTensors all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  return all;
}

class ByParameter : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ByParameter, testing::Values(2, 3));

TEST_P(ByParameter, SingleUpdatesMatchJointUpdates) {
  const auto trained = [&](bool one_by_one) {
    std::vector<at::Tensor> weights;
    run_ranks_as_threads(
        GetParam(),
        [&](Context& context) {
          const auto model = test::model_without_norm();
          const optim::NamedTensors parameters = by_name(*model);
          DistributedDataParallel ddp(context, model, one_by_one ? by_parameter() : DataParallelOptions());
          std::unique_ptr<optim::Optimizer> optimizer =
              optim::make_optimizer({.name = "adamw", .lr = 0.1, .weight_decay = 0.1}, parameters);
          if (one_by_one)
            optimizer = std::make_unique<LazyUpdateOptimizer>(
                std::move(optimizer), parameters,
                [&](const optim::NamedTensors& asked) { ddp.finish_reduction(asked); });
          for (int step = 0; step < 5; ++step) {
            ddp.zero_grad();
            optimizer->set_lr(0.1 / (step + 1));
            for (const auto& parameter : parameters) optimizer->finish_pending_updates({parameter});
            test::mean_square(model->forward(numbers({6, 4}, 3 + context.rank() + step)), numbers({6, 3}, 9))
                .backward();
            if (one_by_one) ddp.finish_reduction({});
            optimizer->step();
          }
          optimizer->finish_pending_updates();
          if (context.rank() == GetParam() - 1) {
            for (const auto& [name, parameter] : parameters) weights.push_back(parameter.detach().clone());
          }
        },
        kDeadline);
    return weights;
  };
  const std::vector<at::Tensor> expected = trained(false), found = trained(true);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
}

TEST_P(ByParameter, NamesMissingGradientBeforeHandOut) {
  run_ranks_as_threads(
      GetParam(),
      [&](Context& context) {
        const auto model = test::model_without_norm();
        const optim::NamedTensors parameters = by_name(*model);
        DistributedDataParallel ddp(context, model, by_parameter());
        for (int step = 0; step < 2; ++step) {
          ddp.zero_grad();
          if (step == 1 && context.rank() == 1) model->use_second = false;
          model->forward(numbers({6, 4}, 3)).square().mean().backward();
          ddp.finish_reduction({});
          if (step == 0) {
            ddp.finish_reduction(parameters);
            continue;
          }
          EXPECT_THAT([&] { ddp.finish_reduction({parameters.front()}); },
                      testing::ThrowsMessage<InvalidArgument>(
                          AllOf(HasSubstr("second.weight"), HasSubstr("rank 1"))));
        }
      },
      kDeadline);
}

// Gradients that were not requested are still in flight. The next pass would write to their memory.
TEST(ByParameterOf, EarlyPassFailsGroup) {
  EXPECT_THAT(
      [] {
        run_ranks_as_threads(
            2,
            [&](Context& context) {
              const auto model = test::model_without_norm();
              DistributedDataParallel ddp(context, model, by_parameter());
              for (int step = 0; step < 2; ++step) {
                model->forward(numbers({6, 4}, 3)).square().mean().backward();
                ddp.finish_reduction(by_name(*model));
              }
              model->forward(numbers({6, 4}, 3)).square().mean().backward();
              ddp.finish_reduction({by_name(*model).front()});
              model->forward(numbers({6, 4}, 3)).square().mean().backward();
            },
            kDeadline);
      },
      testing::ThrowsMessage<CommError>(HasSubstr("before finish_reduction() was called")));
}

}  // namespace
}  // namespace trireme::parallel
