// An error in a recomputation names the layer and leaves all state unchanged. The next try works like the
// first one.
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include "tests/unit/model/learning.h"
#include "trireme/base/error.h"
#include "trireme/model/checkpointed.h"
#include "trireme/model/forward_record.h"

namespace trireme::model {
namespace {

using test::Forward;
using test::learning;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A layer whose forward differs between runs.
Layer fickle(const std::function<at::Tensor(const at::Tensor& x, int run)>& forward) {
  const auto runs = std::make_shared<int>(0);
  return {.name = "block 3", .forward = [=](const at::Tensor& x) { return forward(x, ++*runs); }};
}

void expect_rejected(const Layer& layer, const std::vector<std::string>& words) {
  const at::Tensor x = learning({2, 6}), y = checkpointed(layer).forward(x)->sum();
  try {
    y.backward();
    FAIL() << "nothing was refused";
  } catch (const InvalidArgument& error) {
    for (const std::string& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
  EXPECT_FALSE(x.grad().defined());
}

TEST(CheckpointedErrors, NameALayerThatSavesAnotherShape) {
  expect_rejected(fickle([](const at::Tensor& x, int run) { return at::exp(x.slice(1, 0, run)); }),
                  {"layer 'block 3' is not the same when it runs again", "tensor 0",
                   "was Float of shape [2, 1] on cpu", "is Float of shape [2, 2]", "left out"});
}

TEST(CheckpointedErrors, NameALayerThatSavesAnotherType) {
  expect_rejected(
      fickle([](const at::Tensor& x, int run) { return at::exp(run == 1 ? x : x.to(at::kDouble)); }),
      {"layer 'block 3'", "was Float", "is Double"});
}

TEST(CheckpointedErrors, NameALayerThatSavesLess) {
  expect_rejected(
      fickle([](const at::Tensor& x, int run) { return run == 1 ? at::tanh(at::exp(x)) : at::exp(x); }),
      {"layer 'block 3'", "saves 1 tensors, and saved 2"});
}

TEST(CheckpointedErrors, NameForwardThatRequestsMoreNumbers) {
  int runs = 0;
  const Forward forward = [&](const at::Tensor& x) {
    if (++runs == 2) same_again(1);
    return at::exp(x);
  };
  const at::Tensor y = checkpointed(forward, learning({2}))->sum();
  EXPECT_THAT([&] { y.backward(); }, ThrowsMessage<InvalidArgument>(HasSubstr("same_again() for number 0")));
}

TEST(CheckpointedErrors, NameAnInputThatItsLayerChanges) {
  const Layer layer{.name = "block 3", .forward = [](const at::Tensor& x) { return at::exp(x.add_(1)); }};
  EXPECT_THAT(
      [&] { checkpointed(layer).forward(learning({2}) * 2); },
      ThrowsMessage<InvalidArgument>(HasSubstr("layer 'block 3' changes its input number 0 in place")));
}

TEST(CheckpointedErrors, NameInputChangedBeforeBackward) {
  const Forward forward = [](const at::Tensor& x) { return at::exp(at::tanh(x)); };
  const at::Tensor x = at::randn({2}), w = learning({2});
  const at::Tensor y = checkpointed(forward, Tensors{w * 1}, {.name = "part"})->sum();
  EXPECT_NO_THROW(y.backward());
  at::Tensor middle = w * 1;
  const at::Tensor z = checkpointed(forward, middle, {.name = "part"})->sum();
  {
    const at::NoGradGuard no_grad;
    middle.add_(1);
  }
  EXPECT_THAT([&] { z.backward(); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("part: its input number 0 was changed in place"),
                                                   HasSubstr("change a copy"))));
}

TEST(CheckpointedErrors, NameSavedTensorChangedInPlace) {
  const Forward forward = [](const at::Tensor& x) {
    at::Tensor y = at::exp(x);  // saves its result
    const at::Tensor z = at::tanh(y);
    y.add_(1);
    return at::exp(z);
  };
  const at::Tensor y = checkpointed(forward, learning({2}), {.name = "part"})->sum();
  EXPECT_THAT([&] { y.backward(); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("part"), HasSubstr("changed in place after"))));
}

TEST(CheckpointedErrors, NameParameterUpdatedBeforeBackward) {
  at::Tensor w = learning({2, 2});
  const at::Tensor y = checkpointed([&](const at::Tensor& x) { return at::tanh(x.matmul(w)); },
                                    learning({2, 2}), {.name = "part"})
                           ->sum();
  {
    const at::NoGradGuard no_grad;
    w.add_(1);
  }
  EXPECT_THAT([&] { y.backward(); }, ThrowsMessage<InvalidArgument>(HasSubstr("changed in place after")));
}

TEST(CheckpointedErrors, KeepGeneratorsSwitchesAndGraphForRetry) {
  int runs = 0;
  at::Tensor weight = learning({16});
  const Forward forward = [&](const at::Tensor& x) {
    const at::Tensor dropped = at::dropout(at::exp(x * weight), 0.5, true);
    if (++runs == 2) throw std::runtime_error("the device is gone");
    return at::sin(dropped);
  };
  torch::manual_seed(1);
  const at::Tensor x = learning({16}), y = checkpointed(forward, x);
  const at::Tensor state = random_state().front();
  const at::Tensor sum = y.sum();
  EXPECT_THAT([&] { sum.backward(); }, ThrowsMessage<std::runtime_error>(HasSubstr("the device is gone")));
  EXPECT_TRUE(random_state().front().equal(state));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_EQ(same_again(9), 9u);
  EXPECT_FALSE(x.grad().defined());
  sum.backward();
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(x.grad().ne(0).equal(y.ne(0)));
}

}  // namespace
}  // namespace trireme::model
