// Layers that change their input in place, at the beginning of a stage. They train as on one rank.
#include <ATen/ops/mse_loss.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using comm::Context;
namespace nn = torch::nn;

at::Tensor loss_in_place(const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }
at::Tensor input_in_place() { return test::numbers({12, 4}, 1); }
at::Tensor target_in_place() { return test::numbers({12, 4}, 2); }

nn::Sequential chain_in_place() {
  const auto relu = [] { return nn::ReLU(nn::ReLUOptions(/*inplace=*/true)); };
  nn::Sequential chain(relu(), nn::Linear(4, 8), relu(), nn::Linear(8, 8), relu(), nn::Linear(8, 8), relu(),
                       nn::Linear(8, 4));
  test::fill_parameters(*chain);
  return chain;
}

struct Way {
  std::string schedule;
  int num_chunks = 0;
  std::vector<int> cuts;
};

class InPlaceCut : public testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Every, InPlaceCut,
                         testing::Values(Way{"gpipe", 0, {2}}, Way{"1f1b", 0, {4}}, Way{"zb-h1", 0, {2}},
                                         Way{"interleaved-1f1b", 2, {2, 4, 6}}),
                         [](const auto& test) { return text("case", test.index); });

TEST_P(InPlaceCut, TrainsAsOneRankDoes) {
  nn::Sequential whole = chain_in_place();
  loss_in_place(whole->forward(input_in_place()), target_in_place()).backward();
  std::map<std::string, at::Tensor> expected;
  for (const auto& item : whole->named_parameters()) expected[item.key()] = item.value().grad();
  comm::run_ranks_as_threads(2, [&](Context& context) {
    Pipeline pipe(
        context, model::layers_of(chain_in_place()),
        {.schedule = GetParam().schedule, .num_chunks = GetParam().num_chunks, .cuts = GetParam().cuts});
    pipe.step(input_in_place(), target_in_place(), loss_in_place);
    for (const auto& [name, parameter] : pipe.parameters())
      EXPECT_TRUE(parameter.grad().allclose(expected.at(name), 1e-5, 1e-7)) << name;
  });
}

TEST(InPlaceRecomputed, RejectsInputNeededAgain) {
  EXPECT_THAT(
      [] {
        comm::run_ranks_as_threads(2, [](Context& context) {
          Pipeline pipe(context, model::layers_of(chain_in_place()), {.cuts = {2}, .recompute = true});
          pipe.step(input_in_place(), target_in_place(), loss_in_place);
        });
      },
      testing::Throws<std::exception>(testing::Property(
          &std::exception::what,
          testing::AllOf(testing::HasSubstr("in place"), testing::HasSubstr("recompute")))));
}

}  // namespace
}  // namespace trireme::parallel
