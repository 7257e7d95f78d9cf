// The recomputed forward of a stage equals its first forward.
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/dropout.h>
#include <torch/utils.h>

#include "tests/unit/parallel/stage_layers.h"
#include "trireme/parallel/pipeline/internal/stage.h"
#include "trireme/parallel/tensor/dropout.h"

namespace trireme::parallel {
namespace {

using test::numbers;

/// Elements that forward dropped get no gradient, and the others do.
void expect_masks_to_agree(Stage& stage, int microbatch, const at::Tensor& output) {
  const at::Tensor gradient = stage.backward(microbatch, at::ones_like(output));
  EXPECT_TRUE(gradient.ne(0).equal(output.ne(0))) << "micro-batch " << microbatch;
}

TEST(StageRecompute, KeyedDropoutRepeatsItsFirstMask) {
  const auto keys = std::make_shared<DropoutKeys>(7);
  const auto dropout = std::make_shared<ParallelDropout>(keys, 0.5);
  Stage stage({model::make_layer(*dropout, "dropout", {dropout},
                                 [dropout](const at::Tensor& x) { return dropout->forward(x); })},
              StageOptions{.recompute = true});
  keys->begin(1);
  const at::Tensor first = stage.forward(0, numbers({4, 16}, 1));
  keys->begin(2);
  const at::Tensor second = stage.forward(1, numbers({4, 16}, 2));
  ASSERT_FALSE(first.ne(0).equal(second.ne(0)));
  expect_masks_to_agree(stage, 0, first);
  expect_masks_to_agree(stage, 1, second);
  // The current pass continues with its own mask.
  const at::Tensor x = at::ones_like(first);
  const at::Tensor after = dropout->forward(x);
  keys->begin(2);
  EXPECT_TRUE(after.equal(dropout->forward(x)));
}

TEST(StageRecompute, TorchsGeneratorContinuesFromWhereItWas) {
  Stage stage({test::one(torch::nn::Dropout(0.5))}, StageOptions{.recompute = true});
  torch::manual_seed(3);
  const at::Tensor output = stage.forward(0, numbers({4, 16}, 1));
  const at::Tensor next = at::rand({8});
  torch::manual_seed(3);
  stage.clear();
  stage.forward(0, numbers({4, 16}, 1));
  expect_masks_to_agree(stage, 0, output);
  EXPECT_TRUE(at::rand({8}).equal(next));
}

}  // namespace
}  // namespace trireme::parallel
