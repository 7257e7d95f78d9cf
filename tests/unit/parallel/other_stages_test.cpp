// The module of a pipeline in direct use. Using values that the rank does not have is an error.
#include <ATen/ops/mse_loss.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using testing::AllOf;
using testing::HasSubstr;
namespace nn = torch::nn;

nn::Sequential staged_chain() {
  nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 4));
  test::fill_parameters(*net);
  return net;
}

at::Tensor staged_input() { return test::numbers({12, 4}, 1); }
at::Tensor staged_loss(const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }

/// The exception text of the use of the module. "" if it does not throw.
std::string thrown_by(const std::function<void()>& use) {
  try {
    use();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void save_to_memory(const nn::Sequential& net) {
  std::ostringstream file;
  torch::save(net, file);
}

TEST(OtherStagesOfAPipeline, AreNotComputedWithNorSaved) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    nn::Sequential net = staged_chain();
    Pipeline pipe(context, model::layers_of(net), {.cuts = {2}});
    pipe.step(staged_input(), staged_input(), staged_loss);
    const std::string theirs = context.rank() == 0 ? "2.weight" : "0.weight";
    for (const auto& use : {std::function([&] { net->forward(staged_input()); }),
                            std::function([&] { save_to_memory(net); })}) {
      const std::string error = thrown_by(use);
      EXPECT_THAT(error, AllOf(HasSubstr(theirs), HasSubstr("belongs to a stage on another rank"))) << error;
    }
    EXPECT_EQ(thrown_by([&] { pipe.evaluate(staged_input()); }), "");
  });
}

TEST(OtherStagesOfAPipeline, HaveTheirFirstValuesAgainAfterIt) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    nn::Sequential net = staged_chain();
    for (int time = 0; time < 2; ++time) {
      Pipeline pipe(context, model::layers_of(net), {.cuts = {2}});
      pipe.step(staged_input(), staged_input(), staged_loss);
    }
    EXPECT_TRUE(net->forward(staged_input()).equal(staged_chain()->forward(staged_input())));
  });
}

TEST(OtherStagesOfAPipeline, AreRemoteForEquallyCutSecondPipeline) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    nn::Sequential net = staged_chain();
    auto pipe = std::make_unique<Pipeline>(context, model::layers_of(net), PipelineOptions{.cuts = {2}});
    const double loss = pipe->step(staged_input(), staged_input(), staged_loss);
    // The second pipeline is created before the first one ends.
    pipe = std::make_unique<Pipeline>(context, model::layers_of(net), PipelineOptions{.cuts = {2}});
    EXPECT_EQ(pipe->step(staged_input(), staged_input(), staged_loss), loss);
  });
}

TEST(OtherStagesOfAPipeline, HaveNoValuesUntilLastPipelineEnds) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    nn::Sequential net = staged_chain();
    auto pipe = std::make_unique<Pipeline>(context, model::layers_of(net), PipelineOptions{.cuts = {2}});
    pipe = std::make_unique<Pipeline>(context, model::layers_of(net), PipelineOptions{.cuts = {2}});
    EXPECT_THAT(thrown_by([&] { net->forward(staged_input()); }),
                HasSubstr("belongs to a stage on another rank"));
    pipe.reset();
    EXPECT_TRUE(net->forward(staged_input()).equal(staged_chain()->forward(staged_input())));
  });
}

TEST(OtherStagesOfAPipeline, AreNamedByDifferentlyCutSecondPipeline) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    nn::Sequential net = staged_chain();
    const Pipeline pipe(context, model::layers_of(net), {.cuts = {2}});
    EXPECT_THAT(thrown_by([&] { Pipeline(context, model::layers_of(net), {.cuts = {4}}); }),
                AllOf(HasSubstr("rank 0 has no values of '2."), HasSubstr("end that one first")));
  });
}

// The stage that fails in construction is the second one of its rank. The first one has weights, groups and
// buffers by then.
TEST(OtherStagesOfAPipeline, HaveValuesAfterThrowingConstructor) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    const PipelineOptions options{.schedule = "interleaved-1f1b", .cuts = {1, 2, 4}};
    nn::Sequential net = staged_chain(), other = staged_chain();
    for (int time = 0; time < 2; ++time) {
      PipelineOptions failing = options;
      failing.materialise = [made = 0](const std::vector<model::Layer>&) mutable {
        if (++made == 2) throw DataError("out of luck");
      };
      EXPECT_THAT(thrown_by([&] { Pipeline(context, model::layers_of(net), failing); }),
                  HasSubstr("out of luck"));
    }
    EXPECT_TRUE(net->forward(staged_input()).equal(staged_chain()->forward(staged_input())));
    Pipeline pipe(context, model::layers_of(net), options),
        expected(context, model::layers_of(other), options);
    for (int step = 0; step < 2; ++step)
      EXPECT_EQ(pipe.step(staged_input(), staged_input(), staged_loss),
                expected.step(staged_input(), staged_input(), staged_loss));
  });
}

TEST(OtherStagesOfAPipeline, KeepLayersThatThisRankUses) {
  comm::run_ranks_as_threads(2, [](Context& context) {
    const nn::Linear shared(4, 4);
    nn::Sequential net(shared, nn::Tanh(), shared, nn::Tanh());
    test::fill_parameters(*net);
    std::vector<model::Layer> layers = model::layers_of(net);
    for (auto& [name, parameter] : layers[2].parameters) name.replace(0, 1, "0");
    Pipeline pipe(context, layers, {.cuts = {2}});
    pipe.step(staged_input(), staged_input(), staged_loss);
    EXPECT_EQ(net->forward(staged_input()).sizes(), staged_input().sizes());
  });
}

}  // namespace
}  // namespace trireme::parallel
