// Captured and replayed steps have the bits of steps without graphs. A step that cannot be captured is an
// error with the reason, or runs without a graph.
#include "trireme/parallel/graphed_step.h"

#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/support/graphed_loops.h"
#include "tests/support/stand_in_device_graphs.h"
#include "trireme/base/error.h"
#include "trireme/parallel/zero/internal/update_watch.h"

namespace trireme::parallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class GraphedStepTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { test::register_stand_in_graphs(); }
};

class GraphedLoop : public GraphedStepTest, public testing::WithParamInterface<test::GraphedRow> {};

TEST_P(GraphedLoop, HasBitsOfUngraphedSteps) {
  const test::FoundLosses plain = test::train(test::kStandInDevice, GraphUse::kOff, GetParam().make),
                          graphed = test::train(test::kStandInDevice, GraphUse::kOn, GetParam().make);
  EXPECT_EQ(plain.replays, 0);
  EXPECT_EQ(graphed.replays, 6 + 2) << "two steps of each size run as they are";
  EXPECT_EQ(graphed.graphs, 2U);
  EXPECT_EQ(graphed.losses, plain.losses);
  EXPECT_LT(plain.losses.back(), plain.losses.front());
}

INSTANTIATE_TEST_SUITE_P(Of, GraphedLoop, testing::ValuesIn(test::kGraphedRows),
                         [](const auto& row) { return std::string(row.param.name); });

struct Wrong {
  const char* name;
  std::function<Fields(const Fields& batch, const std::shared_ptr<at::Tensor>& kept)> body;
  const char* says;
};

const Wrong kWrong[] = {
    {"ReadsANumber",
     [](const Fields& batch, const auto&) {
       return Fields(batch.at(0) * batch.at(0).sum().template item<float>());
     },
     "a number is read on the host while a graph is captured"},
    {"ReadsATensor", [](const Fields& batch, const auto&) { return Fields(batch.at(0).cpu()); },
     "a tensor is read on the host while a graph is captured"},
    {"CopiesFromPageableMemory",
     [](const Fields& batch, const auto&) {
       return Fields(batch.at(0) + at::linspace(0, 1, test::kFeatures).to(batch.at(0).device()));
     },
     "pageable memory"},
};

TEST_F(GraphedStepTest, NamesOperationsThatPreventCapture) {
  for (const Wrong& wrong : kWrong) {
    for (const GraphUse use : {GraphUse::kOn, GraphUse::kAuto}) {
      comm::run_ranks_as_threads(
          1,
          [&](comm::Context& context) {
            GraphedStep step(context.device(),
                             [&](const Fields& batch) { return wrong.body(batch, nullptr); },
                             {.use = use, .warm_up = 1});
            step(test::batch_of(0, 4));
            if (use == GraphUse::kOn) {
              // The second call throws as well, and does not silently run without a graph.
              for (int call = 0; call < 2; ++call)
                EXPECT_THROW(step(test::batch_of(1, 4)), InvalidArgument) << wrong.name << ", " << call;
              EXPECT_THAT([&] { step(test::batch_of(1, 4)); },
                          ThrowsMessage<InvalidArgument>(
                              AllOf(HasSubstr("cannot be captured"), HasSubstr(wrong.says))))
                  << wrong.name;
              return;
            }
            const at::Tensor second = step(test::batch_of(1, 4)).at(0).cpu();
            EXPECT_THAT(step.why_not(), HasSubstr(wrong.says)) << wrong.name;
            EXPECT_EQ(step.num_graphs(), 0U);
            EXPECT_TRUE(
                second.equal(wrong.body(test::batch_of(1, 4).on(context.device()), nullptr).at(0).cpu()))
                << wrong.name;
          },
          {.device = test::kStandInDevice});
    }
  }
}

/// FullyShardedDataParallel checks its shards after this number of reductions. The last one is captured here.
TEST_F(GraphedStepTest, CapturesReductionBeforeShardCheck) {
  comm::run_ranks_as_threads(
      1,
      [](comm::Context& context) {
        const auto row = std::ranges::find(test::kGraphedRows, std::string("Sharded"),
                                           [](const auto& each) { return std::string(each.name); });
        const auto [body, before_step] = row->make(context);
        GraphedStep step(context.device(), body,
                         {.use = GraphUse::kOn, .warm_up = parallel::UpdateWatch::kReductions - 1});
        for (int number = 0; number < parallel::UpdateWatch::kReductions + 2; ++number)
          step(test::batch_of(number, 8));
        EXPECT_EQ(step.num_replays(), 3);
      },
      {.device = test::kStandInDevice});
}

TEST_F(GraphedStepTest, ReleasedInputIsNamed) {
  comm::run_ranks_as_threads(
      1,
      [](comm::Context& context) {
        at::Tensor forgotten;
        GraphedStep step(context.device(),
                         [&](const Fields& batch) { return Fields(batch.at(0) + forgotten); },
                         {.use = GraphUse::kOn, .warm_up = 1});
        for (int number = 0; number < 2; ++number) {
          forgotten = test::batch_of(number, 4).at(0).to(context.device());
          step(test::batch_of(number, 4));
        }
        forgotten = test::batch_of(2, 4).at(0).to(context.device());
        EXPECT_THAT([&] { step(test::batch_of(2, 4)); },
                    ThrowsMessage<c10::Error>(
                        AllOf(HasSubstr("aten::add"), HasSubstr("[4, 6]"), HasSubstr("as an input"))));
      },
      {.device = test::kStandInDevice});
}

TEST_F(GraphedStepTest, IsPlainStepOnCpu) {
  GraphedStep step(c10::kCPU, [](const Fields& batch) { return Fields(batch.at(0) * 2); });
  EXPECT_THAT(step.why_not(), HasSubstr("device \"cpu\" has no graphs"));
  EXPECT_TRUE(step(test::batch_of(0, 4)).at(0).equal(test::batch_of(0, 4).at(0) * 2));
  EXPECT_THAT(([] { GraphedStep(c10::kCPU, nullptr, {.use = GraphUse::kOn}); }),
              ThrowsMessage<InvalidArgument>(HasSubstr("device \"cpu\" has no graphs")));
  EXPECT_THROW(GraphedStep(c10::kCPU, nullptr, {.warm_up = 0}), InvalidArgument);
}

TEST_F(GraphedStepTest, RejectsHostOnlyLearningRate) {
  const auto optimizer = optim::make_optimizer({.name = "lion"}, {{"w", at::ones({2}).requires_grad_()}});
  EXPECT_THAT([&] { optimizer->keep_lr_on(c10::kCPU); },
              ThrowsMessage<InvalidArgument>(HasSubstr("from the host alone")));
}

}  // namespace
}  // namespace trireme::parallel
