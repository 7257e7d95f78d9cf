#include "trireme/parallel/pipeline/internal/stage_weights.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/parallel/counting_hook.h"
#include "trireme/schedule/program.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using schedule::Action;
using schedule::ActionKind;

/// One stage with one parameter on every rank of the world, and its step of two micro-batches.
struct Held {
  explicit Held(Context& context) : data(context.world()) {
    weights =
        make_stage_weights({.parameters = {{"w", w}}, .buffers = {}}, {.data = data, .reduction = reduction});
    weights->begin(schedule::data_parallel(2), 0);
  }
  /// Backward of the micro-batch, which adds `gradient` ones. 0: a micro-batch without samples adds nothing.
  void backward(int microbatch, double gradient) {
    const Action action{.stage = 0, .kind = ActionKind::kBackward, .microbatch = microbatch};
    weights->before(action);
    if (gradient != 0) (w * gradient).sum().backward();
    weights->after(action);
  }

  std::optional<comm::Group> data;
  std::shared_ptr<test::CountingHook> hook = std::make_shared<test::CountingHook>();
  DataParallelOptions reduction{.scale = ReduceScale::kSum, .hook = hook};
  at::Tensor w = at::ones({3}).requires_grad_();
  std::unique_ptr<StageWeights> weights;
};

TEST(ReplicatedWeights, ReduceFromTheLastBackwardOn) {
  run_ranks_as_threads(2, [](Context& context) {
    Held held(context);
    held.backward(0, 1);
    EXPECT_EQ(held.hook->started, 0);
    held.backward(1, 10);
    EXPECT_EQ(held.hook->started, 1) << "beside the last backward";
    held.weights->reduce();
    EXPECT_EQ(held.hook->waited, 0);
    held.weights->finish();
    EXPECT_TRUE(held.w.grad().equal(at::ones({3}) * 22));
  });
}

TEST(ReplicatedWeights, ReduceWithEmptyLastMicroBatch) {
  run_ranks_as_threads(2, [](Context& context) {
    Held held(context);
    held.backward(0, 1);
    held.backward(1, context.is_main() ? 10 : 0);
    held.weights->reduce();
    held.weights->finish();
    EXPECT_TRUE(held.w.grad().equal(at::ones({3}) * 12));
  });
}

TEST(ReplicatedWeights, BeginNextStepAfterFailedOne) {
  run_ranks_as_threads(2, [](Context& context) {
    Held held(context);
    held.weights->before({.stage = 0, .kind = ActionKind::kBackward, .microbatch = 0});  // this call throws
    held.weights->begin(schedule::data_parallel(2), 0);
    held.backward(0, 1);
    held.backward(1, 2);
    held.weights->reduce();
    held.weights->finish();
    EXPECT_TRUE(held.w.grad().equal(at::ones({3}) * 6));
  });
}

TEST(WatchedWeights, FinalGradientsAreReportedAfterAbortedSteps) {
  const std::optional<comm::Group> nobody;
  const DataParallelOptions reduction;
  const at::Tensor w = at::ones({3}).requires_grad_(), fixed = at::ones({3});
  std::vector<double> told;
  const auto weights = make_stage_weights(
      {.parameters = {{"w", w}, {"tied", w}, {"fixed", fixed}}, .buffers = {}},
      {.data = nobody, .reduction = reduction, .gradient_is_final = [&](const at::Tensor& of) {
         EXPECT_TRUE(of.is_same(w));
         told.push_back(of.grad()[0].item<double>());
       }});
  const auto backward = [&](int microbatch, double gradient) {
    const Action action{.stage = 0, .kind = ActionKind::kBackward, .microbatch = microbatch};
    weights->before(action);
    (w * gradient).sum().backward();
    weights->after(action);
  };
  weights->begin(schedule::data_parallel(2), 0);
  backward(0, 1);
  EXPECT_TRUE(told.empty());
  backward(1, 10);
  EXPECT_THAT(told, testing::ElementsAre(11));
  (w * 5).sum().backward();
  EXPECT_EQ(told.size(), 1U) << "a backward of somebody else's, between two steps";

  weights->zero_grad();
  weights->begin(schedule::data_parallel(2), 0);
  backward(0, 1);
  weights->before({.stage = 0, .kind = ActionKind::kBackward, .microbatch = 1});
  weights->aborted();  // the backward has thrown
  weights->zero_grad();
  weights->begin(schedule::data_parallel(2), 0);
  backward(0, 2);
  EXPECT_EQ(told.size(), 1U);
  backward(1, 3);
  EXPECT_THAT(told, testing::ElementsAre(11, 5));
}

}  // namespace
}  // namespace trireme::parallel
