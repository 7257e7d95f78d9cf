// Learning-rate schedulers of libtorch resume from a loop's checkpoint. The rate of every later step is that
// of an uninterrupted loop.

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/loop_checkpoints.h"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
namespace optim = torch::optim;

/// A user-defined scheduler whose rate depends only on the number of steps.
class InverseRoot : public optim::LRScheduler {
 public:
  explicit InverseRoot(optim::Optimizer& optimizer) : LRScheduler(optimizer), first_(get_current_lrs()) {}

 private:
  std::vector<double> get_lrs() override {
    std::vector<double> rates = first_;
    for (double& rate : rates) rate /= std::sqrt(1.0 + step_count_);
    return rates;
  }
  const std::vector<double> first_;
};

/// Two parameter groups with different rates.
struct RatedLoop {
  torch::nn::Linear net{2, 2};
  optim::SGD optimizer{{optim::OptimizerParamGroup({net->weight}, std::make_unique<optim::SGDOptions>(1.0)),
                        optim::OptimizerParamGroup({net->bias}, std::make_unique<optim::SGDOptions>(0.5))},
                       optim::SGDOptions(1.0)};
  optim::StepLR by_steps{optimizer, 10, 0.1};
  InverseRoot own{optimizer};
  optim::ReduceLROnPlateauScheduler by_metric{optimizer, optim::ReduceLROnPlateauScheduler::min, 0.5F, 2,
                                              1e-4,      optim::ReduceLROnPlateauScheduler::rel, 3};
};

/// How a loop steps its scheduler, and the scheduler that it saves.
struct Scheduled {
  const char* name;
  void (*step)(RatedLoop&, int number);
  LoopScheduler (*saved)(RatedLoop&);
};
std::ostream& operator<<(std::ostream& out, const Scheduled& scheduled) { return out << scheduled.name; }

class LoopSchedulers : public testing::TestWithParam<Scheduled> {
 protected:
  /// The rates of both groups, step by step.
  std::vector<double> rates(int first, int last,
                            const std::function<void(RatedLoop&, LoopCheckpoints&)>& begin,
                            int saved_step = 0) const {
    std::vector<double> rates;
    comm::run_ranks_as_threads(1, [&](comm::Context& context) {
      RatedLoop loop;
      LoopCheckpoints checkpoints(context, folder_.path(), {*loop.net, {&loop.optimizer}},
                                  {.schedulers = {GetParam().saved(loop)}});
      begin(loop, checkpoints);
      for (int step = first; step <= last; ++step) {
        loop.optimizer.zero_grad();
        loop.net->forward(at::ones({1, 2})).sum().backward();
        loop.optimizer.step();
        GetParam().step(loop, step);
        for (auto& group : loop.optimizer.param_groups()) rates.push_back(group.options().get_lr());
        if (step == saved_step) checkpoints.save(step);
      }
    });
    return rates;
  }
  const test::TemporaryFolder folder_;
};

TEST_P(LoopSchedulers, ContinueFromCheckpointWithSameRates) {
  for (const int saved : {1, 7, 10, 12}) {
    const std::vector<double> whole = rates(
        1, 25, [](RatedLoop&, LoopCheckpoints&) {}, saved);
    const std::vector<double> rest = rates(saved + 1, 25, [&](RatedLoop&, LoopCheckpoints& checkpoints) {
      EXPECT_EQ(checkpoints.restore(), saved);
    });
    EXPECT_EQ(rest, std::vector<double>(whole.begin() + 2 * saved, whole.end())) << saved;
    EXPECT_NE(whole.front(), whole.back());
    std::filesystem::remove_all(folder_.path());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, LoopSchedulers,
    testing::Values(Scheduled{"StepLR", [](RatedLoop& loop, int) { loop.by_steps.step(); },
                              [](RatedLoop& loop) { return LoopScheduler(&loop.by_steps); }},
                    Scheduled{"Own", [](RatedLoop& loop, int) { loop.own.step(); },
                              [](RatedLoop& loop) { return LoopScheduler(&loop.own); }},
                    Scheduled{"ReduceLROnPlateau",
                              [](RatedLoop& loop, int step) {
                                loop.by_metric.step(step < 4 ? 1.0F / static_cast<float>(step) : 0.5F);
                              },
                              [](RatedLoop& loop) { return LoopScheduler(&loop.by_metric); }}),
    testing::PrintToStringParamName());

TEST(LoopScheduler, OfAnotherTypeIsRejected) {
  const test::TemporaryFolder folder;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    RatedLoop loop;
    const auto over = [&](std::vector<LoopScheduler> schedulers) {
      return LoopCheckpoints(context, folder.path(), {*loop.net, {&loop.optimizer}},
                             {.schedulers = std::move(schedulers)});
    };
    over({&loop.by_steps}).save(1);
    EXPECT_THAT([&] { over({&loop.by_metric}).restore(); },
                ThrowsMessage<DataError>(HasSubstr("it is another type's")));
  });
}

TEST(LoopScheduler, OnOneSideAloneIsAWarning) {
  const test::TemporaryFolder folder;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    RatedLoop loop;
    const LoopOptions without, with{.schedulers = {&loop.by_steps}};
    const LoopModels model(*loop.net, {&loop.optimizer});
    const auto told_by = [&](const LoopOptions& saved, const LoopOptions& restored, std::int64_t step) {
      LoopCheckpoints(context, folder.path(), model, saved).save(step);
      if (context.is_main()) testing::internal::CaptureStderr();
      EXPECT_EQ(LoopCheckpoints(context, folder.path(), model, restored).restore(), step);
      return context.is_main() ? testing::internal::GetCapturedStderr() : std::string();
    };
    const std::string absent = told_by(without, with, 1), unnamed = told_by(with, without, 2);
    if (!context.is_main()) return;
    EXPECT_THAT(absent, HasSubstr("holds nothing of learning-rate scheduler 0: it stays as it is"));
    EXPECT_THAT(unnamed, HasSubstr("holds more than the 0 learning-rate schedulers of this loop"));
  });
}

}  // namespace
}  // namespace trireme::checkpoint
