// parallel.priority = "forward": the next forward begins while gradients are in flight. The trained weights
// have the same bits.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

class PriorityRuns : public SmallRuns {
 protected:
  RunConfig in_order(const std::string& name) const {
    RunConfig result = config(name);
    result.run.log_every_steps = 100;
    result.train.clip_norm = 0;
    result.model.hidden = {64, 24, 16};
    result.comm.timeout_s = 30;
    return result;
  }
  RunConfig by_need(const std::string& name) const {
    RunConfig result = in_order(name);
    result.parallel.priority = "forward";
    result.parallel.slice_kib = 8;
    return result;
  }

  struct Trained {
    std::vector<double> losses;
    std::map<std::string, at::Tensor> state;
  };
  /// The final state of rank 0, including the optimizer state.
  static Trained trained(const RunConfig& config, int ranks,
                         const std::function<void(Trainer&)>& after_step = nullptr) {
    const data::DataSource data = open_data(config, Log());
    Trained outcome;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      Trainer trainer(config, context, data);
      Trained mine;
      const auto take = [&](const std::optional<StepReport>& report) {
        if (report) mine.losses.push_back(report->loss);
      };
      while (!trainer.finished()) {
        take(trainer.step());
        if (after_step) after_step(trainer);
      }
      take(trainer.last_report());
      trainer.complete_state();
      for (const checkpoint::Shard& shard : shards_of(trainer.state()))
        mine.state[shard.name] = shard.tensor.clone();
      if (context.is_main()) outcome = std::move(mine);
    });
    return outcome;
  }
  static void expect_same(const Trained& found, const Trained& expected) {
    EXPECT_EQ(found.losses, expected.losses);
    ASSERT_EQ(found.state.size(), expected.state.size());
    for (const auto& [name, tensor] : expected.state)
      EXPECT_TRUE(at::equal(found.state.at(name), tensor)) << name;
  }
};

struct Kind {
  const char* optimizer;
  int ranks = 2;
  std::int64_t accumulation = 1, global_batch = 512;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.optimizer << "Of" << kind.ranks << "Ranks" << kind.accumulation << "Times"
             << kind.global_batch;
}
class PriorityOf : public PriorityRuns, public testing::WithParamInterface<Kind> {};

TEST_P(PriorityOf, ChangesNoBit) {
  const auto with = [](RunConfig config) {
    const Kind& kind = GetParam();
    config.optimizer.name = kind.optimizer;
    config.optimizer.weight_decay = 0.1;
    config.optimizer.decay_1d = false;
    config.optimizer.momentum = 0.9;
    config.learning_rate.schedule = "cosine";
    config.learning_rate.warmup_steps = 3;
    config.train.accumulation = kind.accumulation;
    config.train.global_batch = kind.global_batch;
    return config;
  };
  const int ranks = GetParam().ranks;
  expect_same(trained(with(by_need("by_need")), ranks), trained(with(in_order("in_order")), ranks));
}

// 2048 samples. Batches of 2047 leave one sample for the last step of an epoch, in which most ranks have
// none.
INSTANTIATE_TEST_SUITE_P(Of, PriorityOf,
                         testing::Values(Kind{"sgd"}, Kind{"adamw"}, Kind{"lamb"}, Kind{"muon"},
                                         Kind{"adamw", 3}, Kind{"adamw", 2, 4}, Kind{"sgd", 3, 1, 2047}),
                         testing::PrintToStringParamName());

TEST_F(PriorityRuns, SeeSettledStateEverywhere) {
  struct Seen {
    std::vector<double> losses;
    std::vector<at::Tensor> weights;
  };
  const auto seen = [](const RunConfig& config) {
    Seen all;
    trained(config, 2, [&](Trainer& trainer) {
      Seen mine;
      if (trainer.steps_done() % 3 == 0) mine.losses.push_back(trainer.evaluate().loss);
      if (trainer.steps_done() % 4 == 1) trainer.complete_state();
      if (trainer.steps_done() % 4 == 2) trainer.synchronize();
      if (trainer.steps_done() % 4 == 1 || trainer.steps_done() % 4 == 2) {
        for (const checkpoint::Shard& shard : shards_of(trainer.model_state()))
          mine.weights.push_back(shard.tensor.clone());
      }
      if (trainer.replica() != 0) return;
      all.losses.insert(all.losses.end(), mine.losses.begin(), mine.losses.end());
      all.weights.insert(all.weights.end(), mine.weights.begin(), mine.weights.end());
    });
    return all;
  };
  const Seen expected = seen(in_order("in_order")), found = seen(by_need("by_need"));
  EXPECT_EQ(found.losses, expected.losses);
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (std::size_t i = 0; i < found.weights.size(); ++i)
    EXPECT_TRUE(at::equal(found.weights[i], expected.weights[i])) << i;
}

TEST_F(PriorityRuns, TunedSliceSizesGiveTheSameBits) {
  RunConfig plain = in_order("plain"), tuned = by_need("tuned");
  tuned.parallel.slice_kib = 0;
  for (RunConfig* each : {&plain, &tuned}) {
    each->train.epochs = 20;
    each->train.max_steps = 60;
  }
  const RunResult found = run(2, tuned);
  EXPECT_EQ(found.weights_xxh3, run(2, plain).weights_xxh3);
  EXPECT_THAT(found.found_by_reduction, HasSubstr("KiB are fastest"));
}

TEST_F(PriorityRuns, ContinueFromACheckpointBitForBit) {
  RunConfig plain = in_order("plain");
  const RunResult straight = run(2, plain);
  RunConfig half = by_need("half");
  half.train.max_steps = 6;
  run(2, half);
  half.train.max_steps = 12;
  EXPECT_EQ(run(2, half, RunStart::kResume).weights_xxh3, straight.weights_xxh3);
}

TEST_F(PriorityRuns, GradientsAreShownWhole) {
  const auto norms = [](const RunConfig& config) {
    const data::DataSource data = open_data(config, Log());
    std::vector<double> found;
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      Trainer trainer(config, context, data);
      trainer.on_gradients([&](const optim::NamedTensors& gradients) {
        double sum = 0;
        for (const auto& [name, gradient] : gradients) sum += gradient.square().sum().item<double>();
        if (context.is_main()) found.push_back(sum);
      });
      while (!trainer.finished()) trainer.step();
    });
    return found;
  };
  EXPECT_EQ(norms(by_need("by_need")), norms(in_order("in_order")));
}

TEST_F(PriorityRuns, ThrowingStepIsNamedOnAllRanks) {
  const RunConfig config = by_need("thrown");
  const data::DataSource data = open_data(config, Log());
  const auto broken = [&] {
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      Trainer trainer(config, context, data);
      for (int i = 0; i < 3; ++i) trainer.step();
      if (context.rank() == 1) throw InvalidArgument("out of luck");
      while (!trainer.finished()) trainer.step();
    });
  };
  EXPECT_THROW(broken(), Error);
}

}  // namespace
}  // namespace trireme::train
