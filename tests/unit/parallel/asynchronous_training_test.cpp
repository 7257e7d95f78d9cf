// The loop of AsynchronousTraining equals, bit by bit, that of a Pipeline whose update runs an optimizer
// step.
#include "trireme/parallel/pipeline/asynchronous_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

torch::nn::Sequential looped_chain() {
  torch::nn::Sequential layers;
  for (int i = 0; i < 4; ++i) {
    layers->push_back(torch::nn::Linear(5, 5));
    layers->push_back(torch::nn::Tanh());
  }
  test::fill_parameters(*layers);
  return layers;
}

MicroBatch looped_microbatch(int m) {
  return {.input = test::numbers({4, 5}, m), .target = test::numbers({4, 5}, -m)};
}

const optim::OptimizerOptions kLoopSgd{.name = "sgd", .lr = 0.1, .momentum = 0.9};

struct AsynchronousCase {
  const char* name;
  PipelineOptions options;
  double gradient_scale = 1;
};

std::ostream& operator<<(std::ostream& out, const AsynchronousCase& row) { return out << row.name; }

using LoopWeights = std::map<std::string, at::Tensor>;

class AsynchronousLoop : public testing::TestWithParam<AsynchronousCase> {
 protected:
  /// Each of two runs has this number of rounds of PipelineOptions::num_microbatches.
  static constexpr int kRounds = 5;

  static LoopWeights by_hand() {
    return on_ranks([](comm::Context& context) {
      auto layers = looped_chain();
      std::unique_ptr<optim::Optimizer> optimizer;
      PipelineOptions options = GetParam().options;
      options.update = [&] { optimizer->step(); };
      Pipeline pipe(context, model::layers_of(layers), options);
      optimizer = optim::make_optimizer(kLoopSgd, pipe.parameters());
      for (int run = 0; run < 2; ++run) {
        pipe.start({.num_updates = kRounds,
                    .next = looped_microbatch,
                    .shapes = {looped_microbatch(0).input},
                    .loss = test::mean_square,
                    .gradient_scale = GetParam().gradient_scale});
        while (!pipe.drained()) pipe.advance(1);
      }
      return copies(pipe.parameters());
    });
  }
  static LoopWeights by_training() {
    return on_ranks([](comm::Context& context) {
      AsynchronousTraining training(context, model::layers_of(looped_chain()), GetParam().options, kLoopSgd);
      for (int run = 0; run < 2; ++run) {
        std::vector<int> updates;
        double losses = 0;
        training.run({.num_microbatches = kRounds * GetParam().options.num_microbatches,
                      .next = looped_microbatch,
                      .loss = test::mean_square,
                      .on_update = [&](int update, double loss) {
                        updates.push_back(update);
                        losses += loss;
                      }});
        EXPECT_FALSE(updates.empty());
        EXPECT_EQ(updates.back(), static_cast<int>(updates.size()));
        EXPECT_EQ(losses > 0, training.pipeline().has_last_stage());
      }
      EXPECT_TRUE(training.pipeline().drained());
      return copies(training.pipeline().parameters());
    });
  }

 private:
  static LoopWeights copies(const optim::NamedTensors& parameters) {
    LoopWeights weights;
    for (const auto& [name, parameter] : parameters) weights[name] = parameter.detach().clone();
    return weights;
  }
  template <class Work>
  static LoopWeights on_ranks(const Work& work) {
    LoopWeights all;
    std::mutex mutex;
    comm::run_ranks_as_threads(3, [&](comm::Context& context) {
      LoopWeights mine = work(context);
      const std::lock_guard lock(mutex);
      all.merge(mine);
    });
    return all;
  }
};

TEST_P(AsynchronousLoop, HasWeightsOfManualLoop) {
  const LoopWeights expected = by_hand(), found = by_training();
  ASSERT_EQ(found.size(), 8u);
  auto first = looped_chain();
  for (const auto& item : first->named_parameters()) {
    const at::Tensor& weight = found.at(item.key());
    EXPECT_TRUE(weight.equal(expected.at(item.key()))) << item.key();
    EXPECT_FALSE(weight.equal(item.value())) << item.key() << " was never updated";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, AsynchronousLoop,
    testing::Values(
        AsynchronousCase{"PipeDream", {.schedule = "pipedream", .num_microbatches = 1}},
        AsynchronousCase{"VerticalSync",
                         {.schedule = "pipedream", .num_microbatches = 1, .vertical_sync = true}},
        AsynchronousCase{"PipeDream2Bw", {.schedule = "pipedream-2bw", .num_microbatches = 3}, 1.0 / 3},
        AsynchronousCase{"RoundRobin", {.schedule = "1f1b-rr", .num_microbatches = 2, .replicas = {2, 1}}}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(AsynchronousTraining, RunsWholeUpdates) {
  comm::run_ranks_as_threads(2, [](comm::Context& context) {
    AsynchronousTraining training(context, model::layers_of(looped_chain()),
                                  {.schedule = "pipedream-2bw", .num_microbatches = 2}, kLoopSgd);
    EXPECT_THAT(
        [&] { training.run({.num_microbatches = 3, .next = looped_microbatch, .loss = test::mean_square}); },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("3 micro-batches"), HasSubstr("a multiple of"))));
  });
}

TEST(AsynchronousTraining, RejectsOtherUpdatesWithAdvice) {
  const auto made = [](PipelineOptions options) {
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      const AsynchronousTraining training(context, model::layers_of(looped_chain()), options, kLoopSgd);
    });
  };
  EXPECT_THAT([&] { made({.schedule = "1f1b"}); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("'1f1b' updates at the end of a step"), HasSubstr("Pipeline::step()"))));
  EXPECT_THAT([&] { made({.schedule = "pipedream", .num_microbatches = 1, .update = [] {}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("PipelineOptions::update is set")));
}

}  // namespace
}  // namespace trireme::parallel
